"""The text in which someone says why they decided something."""

from typing import Annotated

from pydantic import Field

from lethe.certificate.validation import PLAIN_TEXT

ReasonText = Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN_TEXT)]

"""The text in which someone says why they decided something."""

from typing import Annotated

from pydantic import Field

NO_CONTROLS = r"^[^\x00-\x1f\x7f]+$"
ReasonText = Annotated[str, Field(min_length=1, max_length=200, pattern=NO_CONTROLS)]

"""The base class of every response."""

from pydantic import BaseModel, ConfigDict


class Response(BaseModel):
    """The base of every model in this package: immutable, and tolerant of unknown fields."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

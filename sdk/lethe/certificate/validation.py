"""What is wrong with a field of a document, in plain English and without the invalid value."""

from collections.abc import Mapping
from typing import Any

# What each kind of validation error means to the caller. None of the messages contains the invalid value. The
# names in braces are limits of the schema.
_MESSAGES = {
    "missing": "is required",
    "extra_forbidden": "unknown field",
    "union_tag_invalid": "unknown kind",
    "json_invalid": "is not valid JSON",
    "value_error": "{error}",
    "assertion_error": "{error}",
    "string_type": "must be a string",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "uuid_parsing": "must be a UUID",
    "uuid_type": "must be a UUID",
    "datetime_type": "must be a date and time such as 2027-01-31T09:00:00Z",
    "datetime_parsing": "must be a date and time such as 2027-01-31T09:00:00Z",
    "datetime_from_date_parsing": "must be a date and time such as 2027-01-31T09:00:00Z",
    "datetime_object_invalid": "must be a date and time such as 2027-01-31T09:00:00Z",
    "timezone_aware": "must include a time zone",
}
# The pattern for text that a person writes and others read. Besides control characters it excludes separators
# of lines and characters that change the direction of text, which can make a line read differently from what
# it says.
PLAIN_TEXT = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+$"
# The beginning of patterns for text that a person writes.
_NO_CONTROL_CHARACTERS = r"^[^\x00-\x1f"
# Errors about lengths: what is counted, which bound was missed, and where pydantic puts the bound.
_LENGTHS = {
    "string_too_short": ("character", "least", "min_length"),
    "string_too_long": ("character", "most", "max_length"),
    "too_short": ("item", "least", "min_length"),
    "too_long": ("item", "most", "max_length"),
}


def validation_message(error: Mapping[str, Any]) -> str:
    """Say in plain English what is wrong with a field, from one error of pydantic.

    >>> validation_message({"type": "string_too_long", "ctx": {"max_length": 1}})
    'must have at most 1 character'
    >>> validation_message({"type": "value_error", "ctx": {"error": ValueError("delta is too small")}})
    'delta is too small'
    """
    kind, context = error["type"], error.get("ctx", {})
    if kind in _LENGTHS:
        unit, bound, limit = _LENGTHS[kind]
        number = context[limit]
        return f"must have at {bound} {number} {unit}{'' if number == 1 else 's'}"
    if kind == "string_pattern_mismatch" and str(context["pattern"]).startswith(_NO_CONTROL_CHARACTERS):
        return "must not be empty or contain control characters"
    try:
        limits = {
            name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()
        }
        return _MESSAGES[kind].format_map(limits)
    except KeyError:
        return "is not valid"

"""The rule for identifiers of subjects, in datasets and in erasure requests.

Rows are accepted only under identifiers that an erasure request can name. Otherwise they could never be
erased. The patterns are in the syntax that Python, Rust (pydantic), RE2 (Arrow) and JSON Schema share.
"""

MAX_CHARACTERS = 256
MAX_BYTES = 4 * MAX_CHARACTERS
"""The most bytes that an identifier can have in UTF-8."""
_ALLOWED = r"[^\x00-\x1f\x7f]"
NO_CONTROLS = f"^{_ALLOWED}+$"
PATTERN = f"^{_ALLOWED}{{1,{MAX_CHARACTERS}}}$"
"""What a whole identifier matches: `NO_CONTROLS` and the limits of its length."""
RULE = f"must have 1 to {MAX_CHARACTERS} characters, none of them a control character"
"""How messages state the rule. They never quote the identifier."""

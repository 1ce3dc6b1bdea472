"""The errors of the integrations. All of them derive from `LetheError`."""

from importlib.util import find_spec

from lethe.client.errors import LetheError


class MissingLibrary(LetheError):
    """An optional library is not installed. The message names all that are needed."""


class BadTable(LetheError):
    """A table cannot become training data. The message names the row and the column, never the value."""


class CannotCertify(LetheError):
    """An estimator or a module cannot be certified as it is.

    The message names the parameter or the submodule, the reason, and what to change.
    """


class CannotRebuild(LetheError):
    """Certified weights cannot be put back, because the estimator or module is not the registered one."""


def require_libraries(purpose: str, *modules: str) -> None:
    """Raise `MissingLibrary` unless all these modules are installed. `purpose` says what needs them."""
    distributions = {"sklearn": "scikit-learn"}
    missing = [distributions.get(module, module) for module in modules if find_spec(module) is None]
    if missing:
        needed = " ".join(missing)
        raise MissingLibrary(
            f"{purpose} needs {' and '.join(missing)}. To install, run: pip install {needed}"
        )

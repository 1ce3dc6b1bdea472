"""Where the ranks of an attempt find each other: in a private file on one machine, or at rank 0's address.

Known before torch is: whoever starts ranks need not wait for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

FILE = "RANKS_FILE"


@dataclass(frozen=True)
class Meeting:
    rank: int
    size: int
    local_rank: int
    local_ranks: int
    file: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Meeting":
        """As torchrun tells its processes; the port beside its own, where it may be listening itself."""
        return cls(
            rank=int(environ["RANK"]),
            size=int(environ["WORLD_SIZE"]),
            local_rank=int(environ.get("LOCAL_RANK", "0")),
            local_ranks=int(environ.get("LOCAL_WORLD_SIZE", "1")),
            file=environ.get(FILE, ""),
            host=environ.get("MASTER_ADDR", ""),
            port=int(environ.get("MASTER_PORT", "29500")) + 1,
        )

    def environment(self) -> dict[str, str]:
        """For a follower on this machine."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_ranks),
            FILE: self.file,
        }


def of_process_group(environ: Mapping[str, str]) -> Meeting | None:
    """The process group this process was started in, if it is one."""
    if "RANK" not in environ or int(environ.get("WORLD_SIZE", "1")) < 2:
        return None
    return Meeting.from_environment(environ)

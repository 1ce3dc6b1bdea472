"""Limits on what a graph, a tokenizer and a row may be, need and take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a representation may use. Whatever exceeds a limit is refused, with the limit as the reason."""

    graph_bytes: int = 1 << 30
    tokenizer_bytes: int = 64 << 20
    nodes: int = 20_000
    """Nodes of the graph, those of nested graphs included."""
    memory_bytes: int = 4 << 30
    """What the check's process may allocate beyond what it holds before the graph is loaded."""
    seconds_per_batch: float = 60.0
    probe_seconds: float = 120.0
    """How long the whole check of a graph may take."""
    image_bytes: int = 32 << 20
    image_pixels: int = 64_000_000
    """Pixels of an image file, before it is resized."""
    text_bytes: int = 1 << 20
    width: int = 1_000_000
    """Numbers per row that the chosen outputs have together."""

    @property
    def alarm_seconds(self) -> float:
        """How long one batch may take from its raw rows to its features. The process is then killed.

        A graph is asked to stop after `seconds_per_batch`, but one operator and the tokenizer never notice.
        """
        return 2 * self.seconds_per_batch

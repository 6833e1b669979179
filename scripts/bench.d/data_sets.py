"""The arrays that are measured, all uint8."""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class DataSet:
    shape: tuple[int, int, int]
    chunk: tuple[int, int, int]
    shard: tuple[int, int, int]

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(s // c for s, c in zip(self.shape, self.chunk))

    @property
    def chunk_bytes(self) -> int:
        return prod(self.chunk)

    @property
    def files(self) -> int:
        return prod(self.grid)

    def keys(self) -> list[str]:
        """The chunk keys in row-major order."""
        ni, nj, nk = self.grid
        return [f"c/{i}/{j}/{k}" for i in range(ni) for j in range(nj) for k in range(nk)]


# Shape, inner chunk shape, shard shape.
# 64 shards each (8 with --quick): 512 chunks of 32 KiB a shard, or 16 chunks of 1 MiB.
DATA_SETS = {
    "32k": DataSet((1024,) * 3, (32, 32, 32), (256,) * 3),
    "1m": DataSet((1024,) * 3, (128, 128, 64), (256,) * 3),
    "32k-quick": DataSet((512,) * 3, (32, 32, 32), (256,) * 3),
    "1m-quick": DataSet((512,) * 3, (128, 128, 64), (256,) * 3),
}

# For what only looks at indexes: shards, chunks in each of them, bytes in each of these.
LISTED = {"listed": (10, 1_030_301, 8), "listed-quick": (1, 1_030_301, 8)}

# For what is read over a network: 8 shards of 4096 chunks of 32 KiB, or of 512, along the first axis: the
# chunk files of a shard are some directories of their own.
REMOTE = {
    "remote": DataSet((4096, 512, 512), (32, 32, 32), (512,) * 3),
    "remote-quick": DataSet((2048, 256, 256), (32, 32, 32), (256,) * 3),
}

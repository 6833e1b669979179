"""A process that makes arrays in a mount which stores them sharded, fills them, renames and removes them.

Its log has the lines of a writer ([`writers`]), with numbers of arrays of its own, and of whole arrays:

    C ARRAY NAME JSON   the array is about to be made in the directory NAME
    B ARRAY             its document is about to be written
    D ARRAY             the document was closed without an error
    N ARRAY NAME        its directory is about to get this name
    R ARRAY             the array is about to be removed, or nothing more is asked of it
"""

import errno
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from arrays import Array
from writers import FAULTS, History, Writer, closed_on_error

# The directory in which arrays are made, and how they are sharded there.
MADE = "made"
RULE = f"--shard={MADE}/*=x2,2"
# Numbers of arrays from here on are those of arrays that are made.
FIRST = 1000
MOST_ARRAYS = 6


@dataclass
class Made:
    """What is known of an array that was made."""

    array: Array
    # Names that its directory may have.
    names: list[str] = field(default_factory=list)
    # Whether it has a document: None where it may have one.
    has_document: bool | None = False
    # Whatever is left of it is of no interest.
    is_over: bool = False

    def document(self) -> dict:
        """As the client writes it: not sharded."""
        metadata = self.array.metadata()
        metadata["chunk_grid"]["configuration"]["chunk_shape"] = [1, self.array.length]
        metadata["codecs"] = metadata["codecs"][0]["configuration"]["codecs"]
        return metadata

    def as_text(self) -> str:
        return json.dumps(self.document())

    def chunks(self, histories: dict[tuple[int, int], History]) -> list[History]:
        at = range(self.array.chunks)
        return [histories.setdefault((self.array.number, chunk), History()) for chunk in at]


def read_made(path: Path, made: list[Made], until: float) -> None:
    """Adds what a creator has noted of arrays. What was noted later than `until` may have happened."""
    known = {one.array.number: one for one in made}
    for line in path.read_text().splitlines():
        when, kind, rest = line.split(" ", 2)
        if not kind.isupper():
            continue
        number, *more = rest.split(" ", 2)
        if kind == "C":
            name, about = more
            fields = json.loads(about)
            chunks = fields.pop("chunks")
            array = Array(**{key: tuple(value) if isinstance(value, list) else value
                             for key, value in fields.items()})
            assert array.chunks == chunks
            known[array.number] = Made(array, [name])
            made.append(known[array.number])
            continue
        one = known[int(number)]
        if kind == "B":
            one.has_document = one.has_document or None
        elif kind == "D":
            one.has_document = True if float(when) <= until else one.has_document or None
        elif kind == "N":
            one.names += more
        elif kind == "R":
            one.is_over = True


class Creator(Writer):
    # An array that faults keep from coming to its place is in the way of everything else.
    fault_errors = FAULTS | {errno.EBUSY, errno.ESTALE}

    def __init__(self, made: list[Made], mount: Path, log: Path,
                 histories: dict[tuple[int, int], History], sync: bool, faults: bool, seed: str):
        super().__init__([], mount, log, 0, 1, {}, sync, faults, seed)
        self.made = {one.array.number: one for one in made if not one.is_over}
        self.arrays = {one.array.number: one.array for one in made}
        self.versions = {chunk: history.last for chunk, history in histories.items()
                         if chunk[0] >= FIRST}
        self.renamed = 0

    def path(self, chunk: tuple[int, int]) -> Path:
        return self.directory(chunk[0]) / self.arrays[chunk[0]].chunk_key(chunk[1])

    def directory(self, number: int) -> Path:
        return self.mount / MADE / self.made[number].names[-1]

    def step(self) -> None:
        if not self.made or len(self.made) < MOST_ARRAYS and self.random.random() < 0.05:
            return self.create()
        number = self.random.choice(list(self.made))
        array = self.arrays[number]
        kinds = {self.write: 30, self.replace: 15, self.remove: 5, self.read: 10, self.link: 4,
                 self.fill: 5, self.write_document: 6, self.rename_array: 2, self.remove_array: 1,
                 self.sync_directory: 3}
        (kind,) = self.random.choices(list(kinds), kinds.values())
        self.doing = f"{kind.__name__} {self.directory(number)}"
        if kind in (self.fill, self.write_document, self.rename_array, self.remove_array):
            kind(number)
        else:
            kind((number, self.random.randrange(array.chunks)))

    def begin(self, chunk: tuple[int, int], kind: str) -> int:
        self.versions.setdefault(chunk, 0)
        version = super().begin(chunk, kind)
        if not self.made[chunk[0]].has_document:
            # A file of the source as any other: what is interrupted leaves a part.
            self.log(f"u {chunk[0]} {chunk[1]} {version} {self.doing}")
        return version

    def done(self, chunk: tuple[int, int], content: bytes | None, durable: bool) -> None:
        is_file = not self.made[chunk[0]].has_document
        sync, self.sync = self.sync, self.sync and not is_file
        super().done(chunk, content, durable)
        self.sync = sync
        if is_file:
            # As durable as the filesystem makes it: that of its directory makes names durable.
            self.unsafe.discard(chunk)

    def read(self, chunk: tuple[int, int]) -> None:
        # Meanwhile its chunks are not seen.
        if not self.faults:
            super().read(chunk)

    # --- whole arrays ----------------------------------------------------------------------------

    def create(self) -> None:
        number = FIRST + len(self.arrays)
        length, per_shard, grid = self.random.choice([
            (64, (2, 2), (4, 6)), (520, (2, 2), (5, 4)), (4096, (2, 2), (3, 4)),
            (40_000, (2, 2), (2, 3)), (64, (2, 2), (16, 16))])
        array = Array(f"{MADE}/n{number}", number, length, per_shard, grid)
        array.packed = self.random.random() < 0.4
        array.separator = "." if self.random.random() < 0.2 else "/"
        one = Made(array, [f"n{number}"])
        self.doing = f"create {one.names[0]}"
        self.log(f"C {number} {one.names[0]} {json.dumps(array.as_json())}")
        self.arrays[number] = array
        os.makedirs(self.mount / MADE / one.names[0], exist_ok=True)
        self.made[number] = one
        if self.random.random() < 0.4:
            self.write_document(number)

    def fill(self, number: int) -> None:
        """Chunks one after the other, as a copy brings them; then the document, if there is none."""
        for chunk in range(self.arrays[number].chunks):
            self.doing = f"fill {self.directory(number)}: {chunk}"
            self.write((number, chunk))
        self.write_document(number)

    def write_document(self, number: int) -> None:
        one, path = self.made[number], self.directory(number) / "zarr.json"
        if one.has_document:
            return
        self.doing = f"write {path}"
        self.log(f"B {number}")
        one.has_document = None
        is_renamed = self.random.random() < 0.5
        place = self.temporary_name(path) if is_renamed else path
        text = one.as_text().encode()
        file = self.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with closed_on_error(file):
            self.put(file, text)
            if self.random.random() < 0.3:
                os.fsync(file)
        os.close(file)
        if is_renamed:
            os.rename(place, path)
        one.has_document = True
        self.log(f"D {number}")
        if self.faults:
            return
        for chunk in self.now:
            # Chunk files go once their shards are durable.
            if chunk[0] == number:
                self.log(f"d {number} {chunk[1]} {self.versions[chunk]} {self.doing}")

    def rename_array(self, number: int) -> None:
        one, old = self.made[number], self.directory(number)
        self.renamed += 1
        name = f"n{number}-{os.getpid()}-{self.renamed}"
        self.log(f"N {number} {name}")
        try:
            os.rename(old, old.with_name(name))
        except OSError:
            # It may have either name now, and the other one would be made anew.
            self.give_up(number)
            raise
        one.names.append(name)

    def remove_array(self, number: int) -> None:
        path = self.directory(number)
        self.give_up(number)
        # After a fault names may be listed that are gone.
        shutil.rmtree(path, ignore_errors=self.faults)

    def give_up(self, number: int) -> None:
        self.log(f"R {number}")
        del self.made[number]
        self.now = {chunk: known for chunk, known in self.now.items() if chunk[0] != number}
        self.unsafe = {chunk for chunk in self.unsafe if chunk[0] != number}

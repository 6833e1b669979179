#!/usr/bin/env python3
"""Kills writable mounts and cuts the power under them; started by scripts/torture."""

import argparse
import ctypes
import errno
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import replace
from functools import cached_property
from math import inf
from pathlib import Path

import numpy
import zarr

from arrays import Array, Wrong, left_over, make_source, pending, read_source, some_arrays
from creators import MADE, RULE, Creator, Made, read_made
from places import MKFS, MOUNT_OPTIONS, Disk, Faulty, Folder, Trouble, View, loop_mounts_missing
from writers import LOOSE, History, Writer, describe, read_log

POLICIES = ["auto", "append", "in-place", "rewrite"]
WRITER_SECONDS = 30
SYNC_FILE_RANGE_WRITE = 2
libc = ctypes.CDLL(None, use_errno=True)


class Round:
    """One source, from its making over some crashes to its end."""

    def __init__(self, name: str, place, args: argparse.Namespace, cut: str | None):
        self.name, self.place, self.args, self.cut = name, place, args, cut
        self.random = random.Random(f"{args.seed}:{name}")
        self.dir = args.run_dir / "round"
        shutil.rmtree(self.dir, ignore_errors=True)
        self.dir.mkdir()
        self.source = place.top / "source"
        self.mountpoint = args.run_dir / "mount"
        self.arrays = some_arrays(self.random)
        self.histories: dict[tuple[int, int], History] = {
            (array.number, chunk): History()
            for array in self.arrays for chunk in range(array.chunks)}
        # Arrays that were made through the mount.
        self.made: list[Made] = []
        self.view: View | None = None
        self.children: list[int] = []
        self.flag = mmap.mmap(-1, 8)
        self.counts: Counter = Counter()
        self.plan: list[str] = []
        self.faults = isinstance(place, Faulty)
        # Chunks that are no version: a call on the way to one has failed.
        self.partial: set[tuple[int, int]] = set()

    # --- the whole -------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self.make()
            lives = self.random.choice([1, 1, 2, 3, 4])
            for life in range(lives):
                clean = self.live(life)
                self.look(life, clean)
                if life + 1 == lives or self.random.random() < 0.5:
                    self.recover(life)
        finally:
            self.stop_children()
            if self.view:
                self.view.kill()
                self.view = None

    def note(self, text: str) -> None:
        self.plan.append(f"{time.monotonic():.4f} {text}")

    def make(self) -> None:
        versions = []
        for array in self.arrays:
            share = self.random.choice([0, 0.3, 0.9, 1])
            shards = {shard for shard in array.shards() if self.random.random() < 0.6}
            known = {chunk: 1 for chunk in range(array.chunks)
                     if array.shard_of(chunk) in shards and self.random.random() < share}
            for chunk in known:
                self.histories[array.number, chunk] = History(1, {1: True}, 1)
            versions.append(known)
        shutil.rmtree(self.source, ignore_errors=True)
        make_source(self.source, self.arrays, versions)
        if self.cut:
            self.place.sync()
        about = {"round": self.name, "seed": self.args.seed, "filesystem": self.place.kind,
                 "mount options": self.place.options(), "cut": self.cut,
                 "arrays": [array.as_json() for array in self.arrays]}
        (self.dir / "round.json").write_text(json.dumps(about, indent=1) + "\n")

    def options(self) -> tuple[list[str], bool]:
        sync = self.random.random() < 0.15
        options = ["--rw", "-v", RULE, f"--update={self.random.choice(POLICIES)}",
                   f"--commit-interval={self.random.choice([0.005, 0.03, 0.2, 1])}"]
        if self.random.random() < 0.3:
            options.append(f"--dirty-limit={self.random.choice(['64K', '1M'])}")
        if self.random.random() < 0.2:
            options.append("--cache-size=16K")
        if sync:
            options += ["-o", "sync"]
        return options, sync

    def mount(self, log: str, options: list[str]) -> View:
        self.note(f"mount {' '.join(options)}")
        self.view = View(self.args.shardfs, self.source, self.mountpoint, self.dir / log, options)
        return self.view

    # --- writing until the end -------------------------------------------------------------------

    def live(self, life: int) -> bool:
        """Whether it ended with an unmount that had nothing to complain about."""
        options, sync = self.options()
        view = self.mount(f"daemon-{life}.log", options)
        self.flag[:8] = bytes(8)
        logs = []
        for number in range(self.args.writers):
            log = self.dir / f"writer-{life}-{number}.log"
            log.touch()
            logs.append(log)
            seed = f"{self.args.seed}:{self.name}:{life}:{number}"
            self.fork(self.write, log, number, sync, seed)
        created = self.dir / f"creator-{life}.log"
        created.touch()
        logs.append(created)
        self.fork(self.create, created, sync, f"{self.args.seed}:{self.name}:{life}:create")
        if self.cut:
            self.fork(self.write_back, f"{self.args.seed}:{self.name}:{life}")
        if self.faults:
            self.place.faults(self.random.choice([1, 5, 20, 100, 300]))
        self.wait_for_the_moment()
        if self.faults:
            # Until something has gone wrong.
            time.sleep(self.random.random())
        if view.process.poll() is not None:
            raise Wrong(f"the daemon ended by itself with {view.process.returncode}: {view.said()}")
        ended = time.monotonic()
        if self.cut:
            self.note(f"cut: {self.cut}")
            self.cut_power()
            # Errors are met and handled for a while.
            time.sleep(self.random.choice([0, 0, 0.02, 0.2]))
        if clean := self.faults and self.random.random() < 0.6:
            self.end_well(view)
            ended = inf
        else:
            self.note("kill")
            view.process.kill()
            self.flag[0] = 1
            view.kill()
            self.view = None
            self.wait_for_children()
        if self.faults:
            self.place.faults(0)
            self.counts["faults"] = self.place.happened()
            check_faults_log(view.said())
        elif not self.cut:
            check_log(view.said())
        elif "panicked" in view.said():
            raise Wrong(f"the daemon panicked: {view.said()}")
        if self.cut:
            self.place.power_on()
        for log in logs:
            for when, text in read_log(log, self.histories, ended if self.cut else inf):
                if when < ended:
                    raise Wrong(f"before the {self.cut or 'end'}: {text} (see {log.name})")
        read_made(created, self.made, ended if self.cut else inf)
        self.counts["crashes"] += not clean
        return clean

    def end_well(self, view: View) -> None:
        """The faults end before the writers do: from then on everything can be committed."""
        self.flag[0] = 1
        self.wait_for_children()
        self.note("the faults end")
        self.place.faults(0)
        if self.random.random() < 0.7:
            # It may tell of what failed before; then of nothing more.
            for attempt in range(2):
                done = subprocess.run([self.args.shardfs, "sync", self.mountpoint], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
                self.note(f"shardfs sync: {done.returncode} {done.stdout}")
            if done.returncode:
                raise Wrong(f"shardfs sync, with no more faults: {done.stdout}")
        self.note("umount")
        view.unmount()
        self.view = None

    def cut_power(self) -> None:
        if self.cut == "shutdown":
            if not self.place.shut_down():
                raise Trouble("the filesystem was to be shut down")
        else:
            self.place.seal()

    def wait_for_the_moment(self) -> None:
        """Half of the time at random; else when a commit is under way, or just over."""
        longest = time.monotonic() + self.random.choice([0.05, 0.3, 1, 2]) * self.random.random()
        journals = [self.source / array.name / ".shardfs/journal" for array in self.arrays]
        if self.random.random() < 0.5:
            time.sleep(max(0, longest - time.monotonic()))
            return
        commits = self.random.choice([1, 2, 3, 10])
        before = list(map(stamp, journals))
        while commits and time.monotonic() < longest + 0.5:
            now = list(map(stamp, journals))
            if now != before:
                commits -= 1
                before = now
            time.sleep(0.0002)
        # From the journal's first byte to the end of the commit.
        time.sleep(self.random.choice([0, 0, 0.0005, 0.002, 0.01]) * self.random.random())

    def write(self, log: Path, number: int, sync: bool, seed: str) -> None:
        writer = Writer(self.arrays, self.mountpoint, log, number, self.args.writers,
                        self.histories, sync, self.faults, seed)
        writer.run(lambda: self.flag[0])

    def create(self, log: Path, sync: bool, seed: str) -> None:
        creator = Creator(self.made, self.mountpoint, log, self.histories, sync, self.faults, seed)
        creator.run(lambda: self.flag[0])

    def write_back(self, seed: str) -> None:
        """Pages reach the disk in any order, at any time, and so do journals of filesystems."""
        rng = random.Random(seed)
        while not self.flag[0]:
            try:
                if rng.random() < 0.02:
                    self.place.sync()
                else:
                    files = [Path(top, name) for top, _, names in os.walk(self.source)
                             for name in names]
                    if files:
                        write_back_some(rng.choice(files), rng)
            except (OSError, Trouble):
                pass
            time.sleep(rng.choice([0.0005, 0.003, 0.02]))

    def fork(self, function, *args) -> None:
        pid = os.fork()
        if pid:
            self.children.append(pid)
            return
        code = 1
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            function(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def wait_for_children(self) -> None:
        deadline = time.monotonic() + WRITER_SECONDS
        failed = []
        for pid in list(self.children):
            while True:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    break
                if time.monotonic() > deadline:
                    raise Wrong(f"a writer hangs (process {pid}: {where(pid)})")
                time.sleep(0.001)
            self.children.remove(pid)
            if status:
                failed.append(status)
        if failed:
            raise Trouble(f"a writer ended with {failed}")

    def stop_children(self) -> None:
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
        if self.view:
            self.view.kill()
            self.view = None
        for pid in self.children:
            os.waitpid(pid, 0)
        self.children = []

    # --- what is left ----------------------------------------------------------------------------

    def look(self, life: int, clean: bool) -> None:
        """A read-only mount shows old or new chunks, before anything is recovered; after a clean
        end the last ones of which nobody was told that they were not written."""
        if not clean:
            # What was accepted was lost with the process, unless it was durable.
            for history in self.histories.values():
                history.accepted = 0
        left = self.dir / f"crashed-{life}"
        subprocess.run(["cp", "-a", self.source, left], check=True)
        inodes = subprocess.run(["find", self.source, "-printf", "%i %s %P\n"],
                                stdout=subprocess.PIPE, check=True).stdout
        (self.dir / f"crashed-{life}.inodes").write_bytes(inodes)
        waiting = {array.number: pending(self.source, array) for array in self.arrays}
        self.counts["pending"] += sum(map(len, waiting.values()))
        self.counts["new files"] += len(list(self.source.glob("*/.shardfs/*.new")))
        view = self.mount(f"look-{life}.log", [])
        for array in self.arrays:
            self.look_at(array, waiting[array.number], settle=False, complete=clean)
        self.look_at_made(settle=False)
        view.unmount()
        self.view = None
        made = [pending(self.source, replace(one.array, name=f"{MADE}/{name}"))
                for one in self.made for name in one.names]
        check_log(view.said(), set().union(*waiting.values(), *made))

    def look_at(self, array: Array, waiting: set[str], settle: bool,
                complete: bool = False) -> dict[int, bytes]:
        listed = self.listed(array, waiting)
        contents = {}
        for chunk in range(array.chunks):
            history = self.histories[array.number, chunk]
            path = self.mountpoint / array.name / array.chunk_key(chunk)
            try:
                stored = contents[chunk] = read_whole(path)
                version = array.version(chunk, stored)
            except FileNotFoundError:
                version = None
            except OSError as error:
                if error.errno == errno.EIO and array.shard_key(chunk) in waiting:
                    self.counts["EIO before recovery"] += 1
                    continue
                raise Wrong(f"{path}: {error}") from error
            except Wrong as wrong:
                history.check_torn(Wrong(f"{path}: {wrong}; {history}, durable {history.durable}"))
                self.partial.add((array.number, chunk))
                continue
            try:
                if listed is not None and (chunk in listed) != (version is not None):
                    raise Wrong("listed, but not there" if version is None
                                else "there, but not listed")
                if complete:
                    history.check_accepted(version)
                if version is None:
                    self.look_for_moved(array, chunk)
                history.settle(version) if settle else history.check(version)
            except Wrong as wrong:
                raise Wrong(f"{path}: {wrong}") from wrong
        return contents

    def look_for_moved(self, array: Array, chunk: int) -> None:
        """What was renamed is there under one of its names."""
        moves = self.histories[array.number, chunk].moved()
        for kept, path in moves:
            try:
                if array.version(chunk, read_whole(self.mountpoint / path)) == kept:
                    self.counts["moved"] += 1
                    return
            except (FileNotFoundError, Wrong):
                pass
        if moves:
            raise Wrong(f"neither there nor under a name that it was renamed to: {moves}")

    def listed(self, array: Array, waiting: set[str]) -> set[int] | None:
        """Chunks that the directories show; None where some of them cannot be shown."""
        if waiting:
            return None
        top = self.mountpoint / array.name
        found = set()
        for directory, _, names in os.walk(top):
            for name in names:
                key = str(Path(directory, name).relative_to(top))
                # Names that are no chunk's are files of the source, directly in an array.
                if key == "zarr.json" or key.startswith(".tmp-") or key.endswith(".__lock"):
                    continue
                parts = key.split(array.separator)
                if parts[0] != "c" or len(parts) != 3:
                    raise Wrong(f"{key} is listed in {top}")
                found.add(int(parts[1]) * array.grid[1] + int(parts[2]))
        return found

    def recover(self, life: int) -> None:
        """After the next commit all shards are valid, for everybody."""
        if self.args.has_recover and self.random.random() < 0.4:
            self.note("shardfs recover")
            done = subprocess.run([self.args.shardfs, "recover", self.source], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
            (self.dir / f"recover-{life}.log").write_text(done.stdout)
            if done.returncode:
                raise Wrong(f"shardfs recover: {done.returncode} {done.stdout}")
            if not self.partial:
                self.check_source(None)
        options, _ = self.options()
        view = self.mount(f"recovered-{life}.log", options)
        for array in self.arrays:
            chunks = {chunk for number, chunk in self.partial if number == array.number}
            for chunk in chunks | {self.random.randrange(array.chunks)}:
                self.write_one(array, chunk)
        self.counts["partial chunks"] += len(self.partial)
        self.partial.clear()
        shown = [self.look_at(array, set(), settle=True) for array in self.arrays]
        made = self.look_at_made(settle=True)
        # Committed is safe without a clean end.
        if clean := self.random.random() < 0.7:
            self.note("umount")
            view.unmount()
        else:
            self.note("kill")
            view.kill()
        self.view = None
        check_log(view.said())
        self.check_source(shown)
        self.check_made(made)
        left = left_over(self.source, self.arrays, MADE)
        # Nobody is in the way of a lock file whose owner has died.
        self.counts["lock files left"] += sum(path.endswith(".__lock") for path in left)
        left = [path for path in left if not path.endswith(".__lock")]
        if clean and left and all(f"/{LOOSE}/.shardfs" in path for path in left):
            # Where nothing is put any more.
            self.counts["work directories left"] += 1
            subprocess.run([self.args.shardfs, "recover", self.source], check=True, timeout=60,
                           stdout=subprocess.DEVNULL)
            left = [path for path in left_over(self.source, self.arrays, MADE)
                    if not path.endswith(".__lock")]
        if clean and left:
            raise Wrong(f"left over after a clean end: {left}")
        self.counts["recovered"] += 1

    def write_one(self, array: Array, chunk: int) -> None:
        history = self.histories[array.number, chunk]
        history.attempt(history.last + 1, True)
        path = self.mountpoint / array.name / array.chunk_key(chunk)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(array.content(chunk, history.last))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Wrong(f"a commit after the crash: {path}: {error}") from error
        history.durable = history.last

    def check_source(self, shown: list[dict[int, bytes]] | None) -> None:
        """The shards as others see them: read here, and by zarr-python."""
        for array in self.arrays:
            found = read_source(self.source, array)
            if shown is not None and found != shown[array.number]:
                chunk = next(c for c in range(array.chunks)
                             if found.get(c) != shown[array.number].get(c))
                was, there = shown[array.number].get(chunk), found.get(chunk)
                raise Wrong(f"chunk {array.chunk_key(chunk)} of {array.name}: the mount showed "
                            f"{self.described(array, chunk, was)}, its shard holds "
                            f"{self.described(array, chunk, there)}")
            for chunk, stored in found.items():
                history = self.histories[array.number, chunk]
                try:
                    version = array.version(chunk, stored)
                except Wrong as wrong:
                    raise Wrong(f"chunk {array.chunk_key(chunk)} in its shard: {wrong}") from wrong
                history.check(version)
            for chunk in set(range(array.chunks)) - set(found):
                self.histories[array.number, chunk].check(None)
            self.read_with_zarr(array, whole_of(array, found))

    def read_with_zarr(self, array: Array, whole: numpy.ndarray) -> None:
        # zarr starts threads, and writers are forked from here.
        self.fork(read_with_zarr, self.source / array.name, whole)
        (reader,) = self.children
        self.children.remove(reader)
        if os.waitpid(reader, 0)[1]:
            raise Wrong(f"zarr-python reads something else in {array.name}, see above")

    def described(self, array: Array, chunk: int, stored: bytes | None) -> str:
        if stored is None:
            return "nothing"
        return f"{len(stored)} bytes, {describe(self.arrays, (array.number, chunk), stored)}"

    # --- arrays that were made through the mount -------------------------------------------------

    def look_at_made(self, settle: bool) -> dict[int, dict[int, bytes]]:
        """Each is whole, or the chunk files that it was to be made of are there."""
        shown = {}
        for one in self.made:
            if one.is_over:
                continue
            names = [name for name in one.names if (self.mountpoint / MADE / name).is_dir()]
            must_be = one.has_document or any(h.durable for h in one.chunks(self.histories))
            if len(names) != 1:
                if names or must_be:
                    raise Wrong(f"array {one.array.number} has the directories {names}")
                one.is_over = True
                continue
            if not settle and self.is_being_placed(names[0]):
                self.counts["arrays between files and shards"] += 1
                continue
            shown[one.array.number] = self.look_at_one(one, names[0], settle)
        return shown

    def is_being_placed(self, name: str) -> bool:
        """Its chunk files go, and shards come: whoever may write next carries on."""
        gathered = self.source / MADE / name / ".shardfs/gathered"
        return any((gathered / document).exists() for document in ("zarr.json", "placing.json"))

    def document_of(self, one: Made, top: Path) -> tuple[dict | None, bool]:
        """The document; None where there is none, or a part of one whose writer was told that it
        could not be written: on a filesystem that fails it leaves an empty file, as a plain one
        does. And whether it is such a part."""
        try:
            text = (top / "zarr.json").read_text()
        except FileNotFoundError:
            return None, False
        is_part = text != one.as_text() and one.as_text().startswith(text)
        if self.faults and not one.has_document and is_part:
            return None, True
        return json.loads(text), False

    def look_at_one(self, one: Made, name: str, settle: bool) -> dict[int, bytes]:
        top = self.mountpoint / MADE / name
        document, is_part = self.document_of(one, top)
        # The mount cannot tell chunk files from shards then, and shows none of them: EIO.
        chunks = self.source / MADE / name if is_part else top
        self.counts["parts of documents"] += is_part
        if document is None and one.has_document or document not in (None, one.document()):
            raise Wrong(f"{top}/zarr.json: {document}")
        contents, is_torn = {}, False
        waiting = pending(self.source, replace(one.array, name=f"{MADE}/{name}"))
        for chunk, history in enumerate(one.chunks(self.histories)):
            path, version = chunks / one.array.chunk_key(chunk), None
            try:
                try:
                    contents[chunk] = read_whole(path)
                    version = one.array.version(chunk, contents[chunk])
                except FileNotFoundError:
                    pass
                except Wrong as wrong:
                    history.check_torn(wrong)
                    is_torn = True
                    continue
                history.settle(version) if settle else history.check(version)
            except (OSError, Wrong) as wrong:
                if getattr(wrong, "errno", None) == errno.EIO and waiting and not settle:
                    self.counts["EIO before recovery"] += 1
                    continue
                raise Wrong(f"{path}: {wrong}; durable {history.durable}") from wrong
        one.names = [name]
        one.has_document = document is not None
        one.is_over = is_torn
        self.counts["arrays made"] += one.has_document and settle
        self.counts["torn chunk files"] += is_torn
        return contents

    def check_made(self, shown: dict[int, dict[int, bytes]]) -> None:
        """The arrays that were made, as others see them in the source: sharded."""
        for one in self.made:
            if one.is_over or one.array.number not in shown:
                continue
            top = self.source / MADE / one.names[0]
            if self.is_being_placed(one.names[0]):
                raise Wrong(f"{top} is not in its place")
            array = replace(one.array, name=f"{MADE}/{one.names[0]}")
            if one.has_document:
                stored = json.loads((top / "zarr.json").read_bytes())
                if stored["codecs"][0]["name"] == "sharding_indexed":
                    rows, columns = stored["chunk_grid"]["configuration"]["chunk_shape"]
                    array.per_shard = rows, columns // array.length
                    array.at_start = False
                elif not self.faults:
                    raise Wrong(f"{top} is not sharded")
                else:
                    self.counts["arrays not sharded"] += 1
                    continue
                found = read_source(self.source, array)
            else:
                files = {chunk: top / array.chunk_key(chunk) for chunk in range(array.chunks)}
                found = {chunk: path.read_bytes() for chunk, path in files.items() if path.exists()}
            if found != shown[array.number]:
                differ = [chunk for chunk in range(array.chunks)
                          if found.get(chunk) != shown[array.number].get(chunk)]
                raise Wrong(f"the mount showed other chunks {differ} than {top} holds")
            if one.has_document:
                self.read_with_zarr(array, whole_of(array, found))

    # --- when something is wrong -----------------------------------------------------------------

    def keep(self, error: str) -> Path:
        kept = self.args.keep / f"{time.strftime('%Y%m%d-%H%M%S')}-{self.name.replace(':', '-')}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.dir, kept, symlinks=True)
        if isinstance(self.place, Disk):
            self.place.save(kept / "disk.img")
        else:
            subprocess.run(["cp", "-a", self.source, kept / "source"], check=False)
        (kept / "plan").write_text("\n".join(self.plan) + "\n")
        (kept / "error").write_text(error + "\n")
        return kept


def whole_of(array: Array, chunks: dict[int, bytes]) -> numpy.ndarray:
    """The values of an array with these stored chunks."""
    whole = numpy.zeros(array.metadata()["shape"], dtype="uint8")
    for chunk, stored in chunks.items():
        row, column = array.coords(chunk)
        plain = numpy.frombuffer(array.decode(stored), dtype="uint8")
        whole[row, column * array.length:(column + 1) * array.length] = plain
    return whole


def read_with_zarr(path: Path, wanted: numpy.ndarray) -> None:
    warnings.simplefilter("ignore")
    found = zarr.open_array(path, mode="r")[:]
    if not numpy.array_equal(found, wanted):
        raise Wrong(f"{numpy.argwhere(found != wanted)[:4].tolist()} differ in {path}")


def check_log(text: str, about: set[str] = frozenset()) -> None:
    """Nothing happened that is worth a warning, except about these shards."""
    for line in text.splitlines():
        bad = "panicked" in line or line.startswith(("shardfs: warn", "shardfs: error"))
        # A request that was withdrawn, as at the end of a mount.
        bad = bad and "Failed to send FUSE reply" not in line
        if bad and not any(key in line for key in about):
            raise Wrong(f"the log says: {line}")


def check_faults_log(text: str) -> None:
    """Whatever fails below, nobody else has written to this source."""
    for line in text.splitlines():
        if "panicked" in line or "in the meantime" in line:
            raise Wrong(f"the log says: {line}")


def read_whole(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        parts = []
        while part := os.read(file, 1 << 20):
            parts.append(part)
    finally:
        os.close(file)
    data = b"".join(parts)
    if len(data) != size:
        raise Wrong(f"{len(data)} bytes are read, {size} are announced")
    return data


def stamp(path: Path) -> tuple:
    try:
        stat = path.stat()
        return stat.st_ino, stat.st_mtime_ns, stat.st_size
    except OSError:
        return ()


def write_back_some(path: Path, rng: random.Random) -> None:
    file = os.open(path, os.O_RDWR)
    try:
        size = os.fstat(file).st_size
        start = rng.randrange(size + 1) & ~4095
        length = rng.choice([4096, 65536, 0])
        arguments = (ctypes.c_int(file), ctypes.c_int64(start), ctypes.c_int64(length),
                     ctypes.c_uint(SYNC_FILE_RANGE_WRITE))
        libc.sync_file_range(*arguments)
    finally:
        os.close(file)


def where(pid: int) -> str:
    """What a process waits for."""
    try:
        return Path(f"/proc/{pid}/stack").read_text().replace("\n", " ")
    except OSError as error:
        return str(error)


# --- all rounds ---------------------------------------------------------------------------------


class Torture:
    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.tag = f"shardfs-torture-{args.run_dir.name}"
        self.ends = time.monotonic() + args.seconds if args.seconds else inf
        self.counts: Counter = Counter()
        self.rounds: Counter = Counter()
        self.failed = 0
        self.missing = {kind: loop_mounts_missing(kind, args.run_dir / "try", self.tag)
                        for kind in args.filesystems}

    def run(self) -> None:
        for kind, why in self.missing.items():
            if why:
                print(f"skipped: power cuts on {kind}: {why}")
        kinds = [kind for kind in self.args.filesystems if not self.missing[kind]]
        if self.args.only:
            what, kind, number = self.args.only.split(":")
            self.one(what, kind, int(number))
            return
        # Clones of files are another way to commit; local filesystems often have none.
        places = ["local"] + [kind for kind in kinds if kind != "ext4"]
        for number in range(self.args.kills):
            self.one("kill", places[0 if number % 2 else number // 2 % len(places)], number)
        for number in range(self.args.faults):
            self.one("faults", "faulty", number)
        for number in range(self.args.cuts):
            for kind in kinds:
                self.one("cut", kind, number)

    def one(self, what: str, kind: str, number: int) -> None:
        if time.monotonic() > self.ends:
            return
        name = f"{what}:{kind}:{number}"
        rng = random.Random(f"{self.args.seed}:{name}:place")
        top = self.args.run_dir / "place"
        if kind == "local":
            place = Folder(top)
        elif kind == "faulty":
            place = Faulty(top, self.args.faulty_fs, rng.randrange(2**32))
        else:
            place = Disk(kind, top, rng.choice(MOUNT_OPTIONS[kind]), self.tag)
        cut = None
        if what == "cut":
            cut = self.args.cut
            if cut == "both":
                cut = rng.choice(["shutdown", "seal"])
            if cut == "shutdown" and kind in self.without_shutdown:
                cut = "seal"
        round = Round(name, place, self.args, cut)
        try:
            round.run()
        except Exception as error:
            text = str(error) if isinstance(error, Wrong) else traceback.format_exc()
            print(f"FAIL {name}: {text}\nkept in {round.keep(text)}", flush=True)
            self.failed += 1
            if not self.args.go_on:
                raise SystemExit(1) from error
        finally:
            place.remove()
        self.rounds[f"{what} {kind}"] += 1
        self.counts += round.counts
        total = sum(self.rounds.values())
        if total % 10 == 0:
            print(f"{total} rounds: {dict(self.counts)}", flush=True)

    @cached_property
    def without_shutdown(self) -> set[str]:
        """Filesystems that cannot be shut down by the ioctl."""
        without = set()
        for kind in self.args.filesystems:
            if self.missing[kind]:
                continue
            disk = Disk(kind, self.args.run_dir / "try", "defaults", self.tag)
            if not disk.shut_down():
                without.add(kind)
                print(f"{kind} has no FS_IOC_SHUTDOWN here: its disk takes no more writes instead")
            disk.remove()
        return without

    def summary(self) -> str:
        rounds = ", ".join(f"{count} x {name}" for name, count in sorted(self.rounds.items()))
        counts = self.counts
        verdict = f"with {self.failed} violations" if self.failed else "without a violation"
        return (f"{sum(self.rounds.values())} rounds {verdict} ({rounds or 'none'}): "
                f"{counts['faults']} faults, {counts['crashes']} crashes, of which {counts['pending']} shards were left with "
                f"a record and {counts['new files']} with an unfinished file")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--cuts", type=int, required=True)
    parser.add_argument("--faults", type=int, required=True)
    parser.add_argument("--faulty-fs", required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--writers", type=int, required=True)
    parser.add_argument("--cut", choices=["shutdown", "seal", "both"], required=True)
    parser.add_argument("--fs", dest="filesystems", required=True)
    parser.add_argument("--only")
    parser.add_argument("--go-on", action="store_true")
    parser.add_argument("--shardfs", required=True)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    args = parser.parse_args()
    args.filesystems = [kind for kind in args.filesystems.split(",") if kind]
    if unknown := set(args.filesystems) - set(MKFS):
        parser.error(f"unknown filesystems: {unknown}")
    help = subprocess.run([args.shardfs, "--help"], stdout=subprocess.PIPE, text=True).stdout
    args.has_recover = "\n  recover " in help
    return args


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    args = parse()
    (args.run_dir / "mount").mkdir()
    print(f"seed {args.seed}", flush=True)
    torture = Torture(args)
    torture.run()
    print(torture.summary())
    sys.exit(torture.failed > 0)


if __name__ == "__main__":
    main()

"""What the commands return."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import subprocess
import typing
from pathlib import Path
from typing import Any

import numpy
import pytest

import shardfs

REAL = os.environ["SHARDFS"]


@pytest.fixture
def damaged(sample: Path) -> Path:
    """One shard cannot be read, another one lies outside the grid."""
    path = sample.parent / "damaged.zarr"
    shutil.copytree(sample, path)
    os.truncate(path / "waves/c/0/0/1", 1000)
    shutil.copy(sample / "waves/c/0/0/0", path / "waves/c/0/0/9")
    return path


def printed(*line: str | Path) -> Any:
    """The JSON of the program itself."""
    return json.loads(subprocess.run([REAL, *line], stdout=subprocess.PIPE, check=False).stdout)


def as_json(result: Any) -> Any:
    """A dataclass as the document that it was made of."""
    return json.loads(json.dumps(dataclasses.asdict(result)))


# --- looking -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["sample", "damaged"])
def test_info_has_all_that_is_printed(which: str, request: pytest.FixtureRequest) -> None:
    source: Path = request.getfixturevalue(which)
    about = shardfs.info(source)
    document = as_json(about)
    assert document.pop("is_damaged") == (which == "damaged")
    assert document == printed("info", "--json", source)
    (waves,) = about.arrays
    assert waves.shape == (64, 112, 120) and waves.dimension_names == ("z", "y", "x")
    assert waves.levels[0].chunks_per_shard == (4, 4, 4)
    assert isinstance(waves.bytes.live, int) and isinstance(about.totals.ratio, float)
    assert hash(waves.chunks) is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        waves.path = "x"  # type: ignore[misc]


def test_info_of_bad_nodes_and_rules_for_new_arrays(sample: Path) -> None:
    (sample / ".shardfs").mkdir()
    (sample / ".shardfs/mount.json").write_text('{"shard": ["**/time=off", "256M"]}')
    (sample / "bad").mkdir()
    (sample / "bad/zarr.json").write_text("{")
    about = shardfs.info(sample)
    assert about.new_arrays == shardfs.NewArrays(("**/time=off", "256M"), "end", None)
    assert about.is_damaged and [bad.document for bad in about.bad] == ["bad/zarr.json"]
    (sample / ".shardfs/mount.json").write_text("{}")
    new = shardfs.info(sample).new_arrays
    assert new and new.shard is None and new.error and '"shard" must be a rule' in new.error


def test_ls(sample: Path) -> None:
    chunks = list(shardfs.ls(sample))
    assert len(chunks) == 192
    assert chunks[0] == shardfs.Chunk("waves/c/0/0/0", (0, 0, 0), "waves/c/0/0/0", 0, 1504, None)
    (one,) = shardfs.ls(sample, "waves/c/0/0/1", checksums=True)
    assert one.crc32c == "f0125d68"
    missing = list(shardfs.ls(sample, missing=True))
    assert len(missing) == 224 - 192 and missing[0].offset is None and missing[0].nbytes is None
    assert len(list(shardfs.ls(sample, level=0))) == 4
    shardfs.resize(sample / "waves", (60, 112, 8), keep_outside=True)
    assert len(list(shardfs.ls(sample, outside=True))) > len(list(shardfs.ls(sample)))


def test_ls_raises_damage_after_all_that_can_be_listed(damaged: Path) -> None:
    listing, found = shardfs.ls(damaged), []
    with pytest.raises(shardfs.DamageError, match=r"shard waves/c/0/0/1: it has 1000 bytes") as caught:
        for chunk in listing:
            found.append(chunk)
    assert len(found) == 135 and caught.value.code == 1
    assert list(listing) == []


def test_verify_says_what_it_finds(sample: Path, damaged: Path) -> None:
    verification = shardfs.verify(damaged, decode=True)
    findings = list(verification)
    assert {(it.severity, it.code, it.shard) for it in findings} == {
        ("defect", "damage", "waves/c/0/0/1"),
        ("defect", "stray", "waves/c/0/0/9"),
    }
    assert verification.summary.defects == 2 and verification.summary.chunks == 135
    # Also without looking at the findings.
    assert shardfs.verify(damaged).summary.defects == 2
    assert shardfs.verify(sample, decode=True).summary == shardfs.Summary(1, 4, 0, 192, 581384, 0, 0)
    closed = shardfs.verify(sample)
    closed.close()
    with pytest.raises(RuntimeError, match="ended before it was complete"):
        _ = closed.summary
    with shardfs.verify(damaged) as left:
        next(left)


def test_verify_has_positions(sample: Path) -> None:
    # A byte of the first chunk.
    shard = sample / "waves/c/0/0/0"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 0xFF
    shard.write_bytes(content)
    (finding,) = shardfs.verify(sample, decode=True)
    assert (finding.code, finding.position, finding.chunk) == ("undecodable", (0, 0, 0), (0, 0, 0))
    assert finding.document is None and finding.array == "waves"


# --- the schemas ------------------------------------------------------------------------------------

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
DOCUMENTS: dict[str, type[Any]] = {
    "info": shardfs.Info,
    "ls": shardfs.Chunk,
    "verify": shardfs.Finding,
    "create": shardfs.Created,
    "resize": shardfs.Resized,
    "delete": shardfs.Deleted,
    "pack": shardfs.Copy,
    "repack": shardfs.Repacked,
}


def parts(hint: Any) -> list[Any]:
    """The dataclass in an annotation."""
    if dataclasses.is_dataclass(hint):
        return [hint]
    return [part for argument in typing.get_args(hint) for part in parts(argument)]


def compare(schema: dict[str, Any], whole: dict[str, Any], kind: Any) -> None:
    """A dataclass has the members of a schema, and a default for those that may be absent."""
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name != "is_damaged"}
    assert fields.keys() == schema["properties"].keys(), kind
    required = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
    assert required == set(schema.get("required", ())), kind
    hints = typing.get_type_hints(kind)
    for name, member in schema["properties"].items():
        member = member.get("items", member)
        if "$ref" in member:
            member = whole["$defs"][member["$ref"].split("/")[-1]]
        for part in parts(hints[name]):
            compare(member, whole, part)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_members_are_those_of_the_schema(name: str) -> None:
    whole = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    compare(whole["$defs"]["finding"] if name == "verify" else whole, whole, DOCUMENTS[name])


def test_so_are_those_of_the_rest() -> None:
    verify, status, stats = (
        json.loads((SCHEMAS / f"{name}.schema.json").read_text()) for name in ("verify", "status", "stats")
    )
    compare(verify["$defs"]["last"]["properties"]["summary"], verify, shardfs.Summary)
    compare(status["properties"]["mounts"]["items"], {"$defs": {"stats.schema.json": stats}}, shardfs.MountStatus)
    assert set(shardfs.Stats.__annotations__) == stats["properties"].keys()
    assert shardfs.Stats.__required_keys__ == set(stats["required"])


# --- whole arrays ------------------------------------------------------------------------------------


def test_create_resize_delete(tmp_path: Path) -> None:
    place = tmp_path / "a.zarr"
    layout: dict[str, Any] = {"shape": (100, 80), "dtype": "uint16", "chunk": [10, 10], "shard": "x2,2"}
    planned = shardfs.create(place, **layout, dry_run=True)
    assert not planned.written and not place.exists()
    made = shardfs.create(
        place,
        **layout,
        codecs=["zstd:3", {"name": "crc32c"}],
        fill=7,
        dimension_names=["y", None],
        attributes={"unit": "mm", "scale": [1.5, None], "é": "\n"},
        index_location="start",
        separator=".",
    )
    assert made.written and made.sharded and made.chunks_per_shard == (2, 2) and made.chunks == 80
    assert made.metadata["fill_value"] == 7 and made.metadata["dimension_names"] == ["y", None]
    assert made.metadata == json.loads((place / "zarr.json").read_text())
    assert made.metadata["attributes"] == {"unit": "mm", "scale": [1.5, None], "é": "\n"}
    with pytest.raises(shardfs.CommandError, match="force"):
        shardfs.create(place, **layout)
    assert shardfs.create(place, **layout, force=True).replaces
    resized = shardfs.resize(place, (40, 160))
    assert (resized.shape_before, resized.shape, resized.written) == ((100, 80), (40, 160), True)
    deleted = shardfs.delete(place, dry_run=True)
    assert not deleted.written and place.exists()
    assert shardfs.delete(place).kind == "array" and not place.exists()


@pytest.mark.parametrize(
    ("dtype", "given", "stored"),
    [
        ("float32", math.nan, "NaN"),
        ("float64", -math.inf, "-Infinity"),
        ("float64", 0.5, 0.5),
        ("bool", True, True),
        ("int8", -128, -128),
        ("complex64", 1 - 2j, [1.0, -2.0]),
        ("r16", b"\x00\xff", "AP8="),
        ({"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}}, "ab", "ab"),
    ],
)
def test_fill_values(dtype: Any, given: object, stored: object, tmp_path: Path) -> None:
    made = shardfs.create(tmp_path / "a", shape=(4,), dtype=dtype, fill=given, dry_run=True)
    assert made.metadata["fill_value"] == stored


def test_shapes_are_chosen(tmp_path: Path) -> None:
    place = tmp_path / "a"
    scalar = shardfs.create(place, shape=(), dtype="uint8", dry_run=True)
    assert scalar.chunk_shape == () and not scalar.sharded
    wishes: dict[str, Any] = {"read_elements": 32768, "write_elements": 10**8, "aspect": (1, 2, 2)}
    chosen = shardfs.create(place, shape=(1000, 2000, 3000), dtype="uint16", dry_run=True, **wishes)
    assert chosen.chunk_shape == (20, 40, 40) and chosen.shard_shape == (280, 560, 560)
    soft = shardfs.create(place, shape=(100,), dtype="uint8", chunk=(7,), soft_shard=(50,), dry_run=True)
    assert soft.shard_shape[0] % 7 == 0
    for dtype in (numpy.float32, numpy.dtype("float32"), numpy.dtype(">f4")):
        named = shardfs.create(place, shape=9, dtype=dtype, chunk=numpy.int64(2), dry_run=True)
        assert named.metadata["data_type"] == "float32" and named.chunk_shape == (2,)
    unnamed = shardfs.create(place, shape=(3,), dtype="uint8", dimension_names=[None], dry_run=True)
    assert unnamed.metadata["dimension_names"] == [None]
    with pytest.raises(ValueError, match="may have no comma"):
        shardfs.create(place, shape=(1,), dtype="uint8", dimension_names=["a,b"])
    with pytest.raises(ValueError, match="not JSON compliant"):
        shardfs.create(place, shape=(1,), dtype="uint8", attributes={"a": math.nan})


# --- copies ------------------------------------------------------------------------------------------


def test_unpack_pack_repack(sample: Path, tmp_path: Path) -> None:
    chunks, packed, again = (tmp_path / name for name in ("chunks.zarr", "packed.zarr", "again.zarr"))
    copied = shardfs.unpack(sample, chunks)
    assert as_json(copied)["arrays"][0]["digest"] == copied.arrays[0].digest
    assert (copied.command, copied.resumed, copied.arrays[0].chunks) == ("unpack", False, 192)
    digest = copied.arrays[0].digest
    assert shardfs.pack(chunks, packed, (64, 64, -1), order="morton", threads=1).arrays[0].files_written == 2
    assert shardfs.pack(chunks, packed, "256M", force=True).arrays[0].digest == digest
    made = shardfs.repack(packed, again, shard=(64, 64, 64), index="start")
    assert isinstance(made, shardfs.Copy) and made.arrays[0].digest == digest
    assert shardfs.info(again).arrays[0].levels[0].index_location == "start"
    in_place = shardfs.repack(again, order="f")
    assert isinstance(in_place, shardfs.Repacked)
    assert (in_place.arrays[0].shards, in_place.arrays[0].shards_rewritten) == (4, 4)
    with pytest.raises(shardfs.CommandError, match="it exists"):
        shardfs.unpack(sample, chunks)


def test_copies_of_what_is_damaged(damaged: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.zarr"
    with pytest.raises(shardfs.DamageError, match="is not finished") as caught:
        shardfs.unpack(damaged, copy)
    result = caught.value.result
    assert isinstance(result, shardfs.Copy)
    assert result.arrays[0].damaged == ("shard waves/c/0/0/1: it has 1000 bytes, its index alone has 1028",)
    assert result.arrays[0].outside == 1
    resumed = shardfs.unpack(damaged, copy, skip_damaged=True)
    assert resumed.resumed and resumed.arrays[0].damaged and resumed.arrays[0].files_kept == 135
    with pytest.raises(shardfs.DamageError) as caught:
        shardfs.repack(damaged)
    result = caught.value.result
    assert isinstance(result, shardfs.Repacked) and result.arrays[0].shards_damaged == 1


def test_what_is_left_out(sample: Path, tmp_path: Path) -> None:
    (sample / "bad").mkdir()
    (sample / "bad/zarr.json").write_text("{")
    os.mkfifo(sample / "pipe")
    copied = shardfs.unpack(sample, tmp_path / "copy.zarr", skip_damaged=True)
    assert {it.path for it in copied.left_out} == {"bad", "pipe"}


# --- references, mounts ------------------------------------------------------------------------------


def test_refs(sample: Path, damaged: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = shardfs.refs(sample, base_url="s3://bucket/x", prefix="p")
    assert found["version"] == 1 and found["templates"] == {"u": "s3://bucket/x"}
    assert found["refs"]["p/waves/c/0/0/0"] == ["{{u}}/waves/c/0/0/0", 0, 1504]
    assert shardfs.refs(sample, json_version=0)["waves/c/0/0/0"][0] == f"{sample}/waves/c/0/0/0"
    assert "waves/.zarray" in shardfs.refs(sample, zarr2=True)["refs"]
    assert shardfs.refs(sample, inline="2K")["refs"]["waves/c/0/0/0"].startswith("base64:")
    output = tmp_path / "refs.json"
    assert shardfs.refs(sample, output) == output
    assert json.loads(output.read_text()) == shardfs.refs(sample)
    with pytest.raises(shardfs.CommandError, match="it exists"):
        shardfs.refs(sample, output)
    assert shardfs.refs(sample, output, force=True) == output
    caplog.clear()
    with pytest.raises(shardfs.DamageError, match="shard waves/c/0/0/1"):
        shardfs.refs(damaged)
    assert not caplog.messages
    assert shardfs.refs(damaged, skip_damaged=True)["refs"]["waves/c/0/0/4"] == ""
    assert any("shard waves/c/0/0/1" in message for message in caplog.messages)

"""Makes a hierarchy in a directory with zarr-python, changes it and reads it back: made.py DIR"""
import sys

import numpy as np
import zarr

root = zarr.create_group(sys.argv[1], attributes={"of": "made.py"})
rng = np.random.default_rng(5)
values = rng.integers(0, 1000, (40, 30), dtype="int16")

plain = root.create_array("plain", shape=(40, 30), chunks=(10, 10), dtype="int16", dimension_names=["y", "x"])
plain[:] = values
sharded = root.create_array("below/sharded", shape=(40, 30), chunks=(5, 5), shards=(20, 15), dtype="int16")
sharded[:] = values
sharded[3:9, 2:28] = 7
expected = values.copy()
expected[3:9, 2:28] = 7

plain.attrs["unit"] = "m"
plain.attrs.update({"more": [1, 2]})
root["below"].attrs["a"] = "group"
plain[5, :] = 1
plain.resize((50, 30))
plain[45:, :] = 3
plain.resize((20, 30))
old = root.create_array("old", shape=(4,), chunks=(2,), dtype="u1", overwrite=True)
old[:] = 1
root.create_array("old", shape=(6,), chunks=(3,), dtype="u1", overwrite=True)[:] = 2
del root["below"].attrs["a"]
zarr.consolidate_metadata(sys.argv[1])

again = zarr.open_group(sys.argv[1], mode="r")
assert again.attrs["of"] == "made.py"
assert dict(again["plain"].attrs) == {"unit": "m", "more": [1, 2]}
expected_plain = values[:20].copy()
expected_plain[5] = 1
assert (again["plain"][:] == expected_plain).all()
assert (again["below/sharded"][:] == expected).all()
assert again["old"][:].tolist() == [2] * 6
assert sorted(again.members(max_depth=None), key=lambda it: it[0])[0][0] == "below"

"""Compares views of `shardfs mount --view` with the source; __main__.py says how."""
import warnings

warnings.simplefilter("ignore")

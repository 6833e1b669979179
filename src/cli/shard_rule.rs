//! Sizes of shards on the command line.

use glob::Pattern;

use super::list::List;
use super::size;
use crate::format::shard_rule::ShardRule;
use crate::fs::NewShardsRule;

/// A requested size of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shard(pub ShardRule);

/// Requested lengths of the shards of a new array, or a requested size.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum NewShard {
    /// Elements along each axis; -1 for the whole extent, 0 for a length that is chosen.
    Lengths(List<i64>),
    Rule(ShardRule),
}

/// Parses the size of shards: `512,-1` (elements, -1 for the whole extent; an empty text for an array without
/// dimensions), `x8,8` (chunks along the last axes), `256M` (bytes of decoded data).
pub(super) fn rule(text: &str) -> Result<Shard, String> {
    if text.is_empty() {
        return Ok(Shard(ShardRule::Shape(Vec::new())));
    }
    if let Some(rule) = without_shape(text) {
        return rule.map(Shard);
    }
    let number =
        |part: &str| part.trim().parse().ok().filter(|extent| *extent == -1 || *extent > 0);
    let shape: Option<Vec<i64>> = text.split(',').map(number).collect();
    shape.map(|shape| Shard(ShardRule::Shape(shape))).ok_or_else(expected)
}

/// Parses the size of the shards of a new array: `512,-1,0`, `x8,8` or `256M`.
pub(super) fn of_new_array(text: &str) -> Result<NewShard, String> {
    match without_shape(text) {
        Some(rule) => rule.map(NewShard::Rule),
        None => text.parse().map(NewShard::Lengths),
    }
}

/// Parses how arrays are sharded that are created: a size as for [`rule`], or `off`; before it, and an equals
/// sign, a pattern of their paths.
pub(super) fn of_created(text: &str) -> Result<NewShardsRule, String> {
    let (pattern, size) = match text.rsplit_once('=') {
        Some((pattern, size)) => (Some(pattern), size),
        None => (None, text),
    };
    let pattern = pattern.map(Pattern::new).transpose();
    let pattern = pattern.map_err(|error| format!("it is no pattern of paths: {error}"))?;
    let rule = match size {
        "off" => None,
        "" => return Err(format!("{}; or off", expected())),
        size => Some(rule(size).map_err(|_| format!("{}; or off", expected()))?.0),
    };
    Ok(NewShardsRule { pattern, rule })
}

/// Parses a size that is not a shape; `None` if it is one.
fn without_shape(text: &str) -> Option<Result<ShardRule, String>> {
    if text.ends_with(|end: char| end.is_ascii_alphabetic()) && !text.contains(',') {
        return Some(match size::parse(text) {
            Ok(0) => Err(expected()),
            Ok(nbytes) => Ok(ShardRule::Nbytes(nbytes)),
            Err(error) => Err(error),
        });
    }
    let number = |part: &str| part.trim().parse().ok().filter(|chunks| *chunks > 0);
    let chunks = text.strip_prefix('x')?;
    let chunks: Option<Vec<u64>> = chunks.split(',').map(number).collect();
    Some(chunks.map(ShardRule::Chunks).ok_or_else(expected))
}

fn expected() -> String {
    "write a number of elements for each dimension, with commas between them (-1 stands for the whole extent), \
     a number of chunks for each of the last ones, such as x8,8, or a number of bytes with its unit, such as \
     256M"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_shards_are_read() {
        let shard = |rule| Ok(Shard(rule));
        assert_eq!(rule("512, -1"), shard(ShardRule::Shape(vec![512, -1])));
        assert_eq!(rule(""), shard(ShardRule::Shape(vec![])));
        assert_eq!(rule("x8,4"), shard(ShardRule::Chunks(vec![8, 4])));
        assert_eq!(rule("256M"), shard(ShardRule::Nbytes(256 << 20)));
        for bad in ["0M", "x", "x0", "x8,", "512,", "0", "-2", "8x", "M"] {
            rule(bad).unwrap_err();
        }
    }

    #[test]
    fn rules_for_created_arrays_may_be_for_some_paths() {
        let created =
            |text| of_created(text).map(|it| (it.pattern.map(|it| it.to_string()), it.rule));
        assert_eq!(created("256M"), Ok((None, Some(ShardRule::Nbytes(256 << 20)))));
        assert_eq!(created("off"), Ok((None, None)));
        let some = |pattern: &str| Some(pattern.to_owned());
        assert_eq!(created("**/lat=off"), Ok((some("**/lat"), None)));
        assert_eq!(created("a=b/*=x8"), Ok((some("a=b/*"), Some(ShardRule::Chunks(vec![8])))));
        for bad in ["", "lat=", "a***=off", "[=off", "on"] {
            of_created(bad).unwrap_err();
        }
    }

    #[test]
    fn shards_of_new_arrays_may_be_left_free() {
        assert_eq!(of_new_array("0,-1"), Ok(NewShard::Lengths(List(vec![0, -1]))));
        assert_eq!(of_new_array("x2"), Ok(NewShard::Rule(ShardRule::Chunks(vec![2]))));
        assert_eq!(of_new_array("1G"), Ok(NewShard::Rule(ShardRule::Nbytes(1 << 30))));
        for bad in ["0M", "x", "3,y"] {
            of_new_array(bad).unwrap_err();
        }
    }
}

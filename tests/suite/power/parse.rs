//! Reads shards as the specification says, and is stricter than a reader has to be.

use super::{Case, Chunks};

use crate::support::{Coords, IndexKind, Level, places};

/// The chunks of the shard at `shard` whose file holds `bytes`, or what is wrong with it.
pub(crate) fn shard(case: &Case, shard: &[u64], bytes: &[u8]) -> Result<Chunks, String> {
    let axes: Vec<usize> = (0..shard.len()).collect();
    let mut chunks = Chunks::new();
    level(&case.model.levels, &axes, shard, bytes, &mut chunks)?;
    Ok(chunks)
}

fn level(
    levels: &[Level],
    axes: &[usize],
    origin: &[u64],
    bytes: &[u8],
    chunks: &mut Chunks,
) -> Result<(), String> {
    let Some((level, below)) = levels.split_first() else {
        chunks.insert(origin.to_vec(), bytes.to_vec());
        return Ok(());
    };
    let mut bytes = bytes;
    for _ in &level.after {
        bytes = checked(bytes).ok_or("the checksum over the shard is wrong")?;
    }
    let axes: Vec<usize> = level.order.iter().map(|axis| axes[*axis]).collect();
    let extents: Coords = axes.iter().map(|axis| level.per_shard[*axis]).collect();
    let slots = places(&extents);
    let length =
        16 * slots.len() + if matches!(level.index, IndexKind::NoChecksum) { 0 } else { 4 };
    let start = match (level.at_start, bytes.len().checked_sub(length)) {
        (_, None) => return Err(format!("{} bytes are too short", bytes.len())),
        (true, _) => 0,
        (false, Some(start)) => start,
    };
    let entries = entries(level, &extents, &bytes[start..start + length])?;
    let mut used = vec![(start, start + length)];
    for (slot, (offset, nbytes)) in slots.iter().zip(entries) {
        if (offset, nbytes) == (u64::MAX, u64::MAX) {
            continue;
        }
        let at = usize::try_from(offset).map_err(|_| "an offset of no file")?;
        let end = usize::try_from(nbytes).ok().and_then(|nbytes| at.checked_add(nbytes));
        let end = end.filter(|end| *end <= bytes.len());
        let end = end.ok_or(format!("{offset}+{nbytes} is beyond {}", bytes.len()))?;
        if at < end {
            used.push((at, end));
        }
        let mut chunk = origin.to_vec();
        for (place, axis) in slot.iter().zip(&axes) {
            chunk[*axis] = origin[*axis] * level.per_shard[*axis] + place;
        }
        self::level(below, &axes, &chunk, &bytes[at..end], chunks)?;
    }
    used.sort_unstable();
    match used.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => Err(format!("{pair:?} overlap")),
        None => Ok(()),
    }
}

fn entries(level: &Level, extents: &[u64], stored: &[u8]) -> Result<Vec<(u64, u64)>, String> {
    let stored = match level.index {
        IndexKind::NoChecksum => stored,
        _ => checked(stored).ok_or("the checksum of the index is wrong")?,
    };
    let word = |bytes: &[u8]| {
        let bytes = bytes.try_into().unwrap();
        match level.index {
            IndexKind::BigEndian => u64::from_be_bytes(bytes),
            _ => u64::from_le_bytes(bytes),
        }
    };
    let words: Vec<u64> = stored.chunks_exact(8).map(word).collect();
    if !matches!(level.index, IndexKind::Transposed) {
        return Ok(words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect());
    }
    // Axes reversed: all offsets, then all lengths, the first axis of the shard the fastest.
    let (offsets, lengths) = words.split_at(words.len() / 2);
    let at = |slot: &Coords| {
        let place = slot.iter().zip(extents).rev();
        let at = place.fold(0, |at, (coord, extent)| at * extent + coord);
        usize::try_from(at).unwrap()
    };
    Ok(places(extents).iter().map(|slot| (offsets[at(slot)], lengths[at(slot)])).collect())
}

/// The bytes before a crc32c that is right.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (body, stored) = bytes.split_last_chunk::<4>()?;
    (crc32c(body) == u32::from_le_bytes(*stored)).then_some(body)
}

/// Four bits at a time, from the polynomial in RFC 3720.
fn crc32c(bytes: &[u8]) -> u32 {
    const STEPS: [u32; 16] = {
        let (mut steps, mut at) = ([0_u32; 16], 0);
        while at < 16 {
            let (mut crc, mut bit) = (at, 0);
            while bit < 4 {
                crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
                bit += 1;
            }
            steps[at as usize] = crc;
            at += 1;
        }
        steps
    };
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        let crc = crc ^ u32::from(*byte);
        let crc = (crc >> 4) ^ STEPS[(crc & 15) as usize];
        (crc >> 4) ^ STEPS[(crc & 15) as usize]
    })
}

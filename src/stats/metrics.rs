//! The counters as OpenMetrics text, shown in `.shardfs/metrics`.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::histogram::Observed;
use super::{Counter, Stats};

/// What metrics tell beside the counters.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// When the mount began.
    pub started: SystemTime,
    /// Bytes that were written and not committed yet; `None` in a read-only mount.
    pub uncommitted: Option<u64>,
}

/// Returns all metrics of a mount as OpenMetrics text, which ends with `# EOF`.
pub fn text(stats: &Stats, facts: Facts) -> String {
    let mut registry = Registry::with_prefix("shardfs");
    registry.register_collector(Box::new(Families(families(stats, facts))));
    let mut text = String::new();
    if encode(&mut text, &registry).is_err() {
        // A string takes whatever is written to it.
        log::error!("the metrics cannot be written");
    }
    text
}

/// Metrics of one name.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    samples: Vec<(Labels, Value)>,
}

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
enum Value {
    Count(u64),
    Gauge(f64),
    Times(Observed),
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in &self.0 {
            let Some((_, first)) = family.samples.first() else { continue };
            let (name, help, unit) = (family.name, family.help, family.unit.as_ref());
            let mut metric = encoder.encode_descriptor(name, help, unit, first.metric_type())?;
            for (labels, value) in &family.samples {
                match labels.is_empty() {
                    true => value.encode(&mut metric)?,
                    false => value.encode(&mut metric.encode_family(labels)?)?,
                }
            }
        }
        Ok(())
    }
}

impl Value {
    fn metric_type(&self) -> MetricType {
        match self {
            Self::Count(_) => MetricType::Counter,
            Self::Gauge(_) => MetricType::Gauge,
            Self::Times(_) => MetricType::Histogram,
        }
    }

    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            Self::Count(count) => encoder.encode_counter::<NoLabelSet, _, u64>(count, None),
            Self::Gauge(value) => encoder.encode_gauge(value),
            Self::Times(Observed { sum, count, buckets }) => {
                encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
            }
        }
    }
}

impl Family {
    fn one(name: &'static str, help: &'static str, unit: Option<Unit>, value: Value) -> Self {
        Self { name, help, unit, samples: vec![(Vec::new(), value)] }
    }

    /// Counter of things that have happened.
    fn count(name: &'static str, help: &'static str, counter: &Counter) -> Self {
        Self::one(name, help, None, Value::Count(counter.get()))
    }

    /// Counter of bytes; the name gets `_bytes`.
    fn bytes(name: &'static str, help: &'static str, counter: &Counter) -> Self {
        Self::one(name, help, Some(Unit::Bytes), Value::Count(counter.get()))
    }
}

fn families(stats: &Stats, facts: Facts) -> Vec<Family> {
    let mut all = of_mount(stats, facts);
    all.extend(of_requests(stats));
    all.extend(of_source(stats));
    all.extend(of_store(stats));
    all.extend(of_chunks(stats));
    all
}

fn of_mount(stats: &Stats, facts: Facts) -> Vec<Family> {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let mut labels: Labels = Vec::new();
    labels.extend(stats.transport.get().map(|it| ("transport", it.name.to_owned())));
    labels.extend(stats.replacing.lock().map(|it| ("shards", it.name().to_owned())));
    // Gauges that are 1: readers of Prometheus's older format know no other kind for it.
    let info = |name, help, labels| Family {
        name,
        help,
        unit: None,
        samples: vec![(labels, Value::Gauge(1.0))],
    };
    let mut all = vec![
        info("build_info", "Version of the program", version),
        info("mount_info", "How requests arrive, and how a store replaces shards", labels),
        Family::one(
            "start_time",
            "When the mount began, since 1970",
            Some(Unit::Seconds),
            Value::Gauge(since_1970(facts.started)),
        ),
    ];
    if let Some(uncommitted) = facts.uncommitted {
        let help = "Bytes that were written and not committed yet";
        all.push(Family::one("uncommitted", help, Some(Unit::Bytes), gauge(uncommitted)));
        let last = stats.last_commit.lock().map_or(0.0, since_1970);
        let help = "When chunks were last committed, since 1970; 0 if none were";
        all.push(Family::one("last_commit_time", help, Some(Unit::Seconds), Value::Gauge(last)));
    }
    if let Some(transport) = stats.transport.get() {
        let (threads, shared) = (transport.threads as u64, transport.shared_nbytes as u64);
        let (of_threads, of_shared) =
            ("Threads that answer requests", "Memory shared with the kernel");
        all.push(Family::one("transport_threads", of_threads, None, gauge(threads)));
        all.push(Family::one("transport_shared", of_shared, Some(Unit::Bytes), gauge(shared)));
    }
    all
}

fn of_requests(stats: &Stats) -> Vec<Family> {
    let of = |operation: &str| vec![("operation", operation.to_owned())];
    let requests = stats.requests.all();
    let times = requests.map(|(operation, it)| (of(operation), Value::Times(it.get())));
    let requests = stats.requests.all();
    let running = requests.map(|(operation, it)| (of(operation), gauge(it.running())));
    let counted = &stats.operations;
    vec![
        Family {
            name: "request_duration",
            help: "Time until requests of the kernel were answered",
            unit: Some(Unit::Seconds),
            samples: times.collect(),
        },
        Family {
            name: "requests_running",
            help: "Requests of the kernel that are not answered yet",
            unit: None,
            samples: running.collect(),
        },
        Family::count(
            "request_errors",
            "Errors that requests met, other than that there is no such file or attribute",
            &counted.errors,
        ),
        Family::bytes("read", "Bytes returned to readers", &counted.read_bytes),
        Family::bytes("written", "Bytes in write requests", &counted.write_bytes),
        Family::count("directory_entries", "Directory entries listed", &counted.entries),
        Family::count("forgotten_inodes", "Files that the kernel has forgotten", &counted.forget),
    ]
}

fn of_source(stats: &Stats) -> Vec<Family> {
    let source = &stats.source;
    let operations = [
        ("open", &source.open),
        ("stat", &source.stat),
        ("read", &source.read),
        ("list", &source.list),
        ("write", &source.write),
        ("sync", &source.syncs),
    ];
    let samples = operations.map(|(operation, counter)| {
        (vec![("operation", operation.to_owned())], Value::Count(counter.get()))
    });
    vec![
        Family {
            name: "source_operations",
            help: "Operations on the source",
            unit: None,
            samples: samples.into(),
        },
        Family::bytes("source_read", "Bytes read from the source", &source.read_bytes),
        Family::bytes("source_written", "Bytes written to the source", &source.write_bytes),
        Family::one(
            "source_read_duration",
            "Time that reads from the source have taken; of a store also from its caches",
            Some(Unit::Seconds),
            Value::Times(stats.source_reads.get()),
        ),
    ]
}

fn of_store(stats: &Stats) -> Vec<Family> {
    let store = &stats.remote;
    vec![
        Family::count("store_requests", "Requests to a store, with repetitions", &store.requests),
        Family::count("store_listings", "Pages of listings asked for", &store.lists),
        Family::bytes("store_fetched", "Bytes fetched from a store", &store.bytes),
        Family::bytes("store_sent", "Bytes of objects that were put", &store.bytes_put),
        Family::bytes("store_copied", "Bytes that a store has copied itself", &store.bytes_copied),
        Family::count("disk_cache_hits", "Parts found in the cache on disk", &store.cached),
        Family::bytes("disk_cache_read", "Bytes read from there", &store.cached_bytes),
        Family::count("store_throttled_requests", "Requests refused as too many", &store.throttled),
        Family::count(
            "store_lost_requests",
            "Requests without an answer, or answered by an error of the server",
            &store.lost,
        ),
        Family::count(
            "store_hedged_requests",
            "Requests sent once more because their answers were late",
            &store.sent_twice,
        ),
        Family::count(
            "store_failed_requests",
            "Requests that have failed, with all of their repetitions",
            &store.failed,
        ),
        Family::one(
            "store_answer_duration",
            "Time until answers of a store began",
            Some(Unit::Seconds),
            Value::Times(stats.answers.get()),
        ),
    ]
}

fn of_chunks(stats: &Stats) -> Vec<Family> {
    let (indexes, decoded) = (&stats.indexes, &stats.decoded);
    let (ahead, commits) = (&stats.ahead, &stats.commits);
    vec![
        Family::count("index_loads", "Shard indexes read", &indexes.loads),
        Family::bytes("index_read", "Stored length of these indexes", &indexes.load_bytes),
        Family::count("index_cache_hits", "Shard indexes found in the cache", &indexes.hits),
        Family::count(
            "changed_shards",
            "Times that a shard was found to have changed",
            &indexes.changed,
        ),
        Family::count(
            "damaged_shards",
            "Times that a shard was found to be damaged",
            &indexes.damaged,
        ),
        Family::count("decoded_shards", "Shards decoded as a whole", &indexes.decoded),
        Family::count("decoded_chunks", "Chunks decoded", &decoded.chunks),
        Family::bytes("decoded", "Decoded length of these chunks", &decoded.bytes),
        Family::count("decoded_cache_hits", "Decoded chunks found in the cache", &decoded.hits),
        Family::count("pushed_chunks", "Chunks pushed ahead of their readers", &ahead.chunks),
        Family::bytes("pushed", "Bytes pushed ahead of their readers", &ahead.bytes),
        Family::bytes("pushed_used", "Bytes pushed that were used", &ahead.used_bytes),
        Family::count("commits", "Commits to arrays, or to shards in a store", &commits.commits),
        Family::count("committed_chunks", "Chunks committed or removed", &commits.chunks),
        Family::bytes("committed", "Length of these chunks", &commits.chunk_bytes),
        Family::count(
            "failed_chunks",
            "Attempts to commit a chunk that have failed",
            &commits.failed,
        ),
    ]
}

fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns a number that goes up and down; one beyond 2^53 loses its last digits.
fn gauge(value: u64) -> Value {
    Value::Gauge(value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts { started: UNIX_EPOCH, uncommitted: Some(7) }
    }

    #[test]
    fn counters_gauges_and_histograms_have_the_names_of_the_conventions() {
        let stats = Stats::default();
        stats.operations.read_bytes.add(u64::MAX);
        stats.requests.lookup.add(std::time::Duration::from_millis(1));
        let text = text(&stats, facts());
        for line in [
            "# TYPE shardfs_build_info gauge",
            concat!("shardfs_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1.0"),
            "# UNIT shardfs_read_bytes bytes",
            "shardfs_read_bytes_total 18446744073709551615",
            "shardfs_uncommitted_bytes 7.0",
            "# TYPE shardfs_request_duration_seconds histogram",
            "shardfs_request_duration_seconds_bucket{le=\"0.001\",operation=\"lookup\"} 1",
            "shardfs_request_duration_seconds_bucket{le=\"+Inf\",operation=\"lookup\"} 1",
            "shardfs_request_duration_seconds_count{operation=\"lookup\"} 1",
            "shardfs_source_operations_total{operation=\"sync\"} 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn no_name_comes_twice() {
        let families = families(&Stats::default(), facts());
        let mut names: Vec<_> = families.iter().map(|it| (it.name, it.unit.is_some())).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}

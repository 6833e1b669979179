//! Names of an array's dimensions, which Zarr v2 has in an attribute of xarray.

use serde_json::{Value, json};

/// Attribute in which xarray stores the names of an array's dimensions.
pub(super) const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

/// Returns the names of all dimensions; `None` if they are not named. A dimension without a name
/// gets one made of its number, because xarray requires a name for each dimension, and an empty
/// list if there is none.
pub(super) fn dimension_names(document: &Value, rank: usize) -> Option<Value> {
    if rank == 0 {
        return Some(json!([]));
    }
    let names = document.get("dimension_names")?.as_array().filter(|names| names.len() == rank)?;
    let name = |(axis, name): (usize, &Value)| match name {
        Value::Null => Some(usual_name(axis)),
        Value::String(_) => Some(name.clone()),
        _ => None,
    };
    names.iter().enumerate().map(name).collect()
}

/// Generated name of a dimension without a name.
pub(super) fn usual_name(axis: usize) -> Value {
    format!("dim_{axis}").into()
}

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

/// Paths of up to three components, some of which begin like others; or names too long for a node.
fn path() -> impl Strategy<Value = PathBuf> {
    let part =
        prop_oneof![Just("a"), Just("b"), Just("a."), Just("a name that is longer than a node")];
    prop::collection::vec(part, 1..=3).prop_map(|parts| parts.iter().collect())
}

#[derive(Debug, Clone)]
enum Step {
    Insert(PathBuf, u64),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (path(), 1..100_u64).prop_map(|(path, number)| Step::Insert(path, number)),
        2 => path().prop_map(Step::Remove),
        1 => (path(), path()).prop_map(|(from, to)| Step::Rename(from, to)),
    ]
}

/// What the tree does, done to a sorted map.
fn rename(model: &mut BTreeMap<PathBuf, u64>, from: &Path, to: &Path) {
    let moved: Vec<_> = model.keys().filter(|path| path.starts_with(from)).cloned().collect();
    for path in moved {
        let (number, below) = (model[&path], path.strip_prefix(from).unwrap());
        let moved = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
        model.remove(&path);
        model.insert(moved, number);
    }
}

fn clear(tree: &mut Tree, above: &Path) {
    let names: Vec<_> = tree.below(above).collect();
    names.into_iter().for_each(|(name, _)| tree.remove(name));
}

/// All paths of a tree at or below one, with their numbers.
fn all(tree: &Tree, above: &Path) -> BTreeMap<PathBuf, u64> {
    tree.below(above).map(|(name, number)| (tree.path(name).to_path_buf(), number)).collect()
}

proptest! {
    #[test]
    fn a_tree_is_a_map_of_paths(steps in prop::collection::vec(step(), 1..60), above in path()) {
        let (mut tree, mut model) = (Tree::default(), BTreeMap::new());
        for step in steps {
            match step {
                Step::Insert(path, number) => {
                    tree.insert(&path, number).unwrap();
                    model.insert(path, number);
                }
                Step::Remove(path) => {
                    prop_assert_eq!(tree.get(&path), model.remove(&path));
                    if let Some(name) = tree.find(&path) {
                        tree.remove(name);
                    }
                }
                Step::Rename(from, to) if !from.starts_with(&to) && !to.starts_with(&from) => {
                    clear(&mut tree, &to);
                    model.retain(|path, _| !path.starts_with(&to));
                    tree.rename(&from, &to);
                    rename(&mut model, &from, &to);
                }
                Step::Rename(..) => {}
            }
            prop_assert_eq!(all(&tree, Path::new("")), model.clone());
            let below = model.clone().into_iter().filter(|(path, _)| path.starts_with(&above));
            prop_assert_eq!(all(&tree, &above), below.collect());
            prop_assert_eq!(tree.nodes.len(), tree.by_name.len() + 1);
        }
        clear(&mut tree, Path::new(""));
        prop_assert_eq!(tree.nodes.len(), 1);
    }
}

#[test]
fn a_name_stays_that_of_what_is_in_a_renamed_directory() {
    let mut tree = Tree::default();
    let name = tree.insert(Path::new("a/b/c"), 1).unwrap();
    tree.rename(Path::new("a"), Path::new("d/e"));
    assert_eq!(&*tree.path(name), Path::new("d/e/b/c"));
    assert_eq!(tree.find(Path::new("d/e/b/c")), Some(name));
    assert_eq!(tree.get(Path::new("a/b/c")), None);
}

/// The kernel may know millions.
#[test]
fn a_name_of_16_bytes_takes_48() {
    assert_eq!(size_of::<Node>(), 48);
    let node = Node::new(ROOT, b"0123456789abcdef");
    assert!(!node.name.spilled());
}

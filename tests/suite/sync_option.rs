//! Mounts with `-o sync`: what has returned is durable, chunks and all that is passed through.

use std::path::Path;

use shardfs::fs::WriteConfig;

use crate::power::Rng;
use crate::power::disk::State;
use crate::power::mounted::{CALLER, Names, User, all_names, disk, is_scratch, mount_as};

const GROUP: &[u8] = br#"{"zarr_format": 3, "node_type": "group"}"#;

/// Files and directories that users see, with their bytes.
fn seen(state: State) -> State {
    let is_own = |path: &Path| {
        path.iter().any(|part| part == ".shardfs") || path.to_string_lossy().ends_with("__lock")
    };
    State {
        files: state.files.into_iter().filter(|(path, ..)| !is_own(path)).collect(),
        directories: state.directories.into_iter().filter(|path| !is_own(path)).collect(),
    }
}

#[test]
fn what_was_done_to_files_and_names_of_the_source_is_durable_once_it_has_returned() {
    let before: Names = all_names().into_iter().filter(|name| !is_scratch(name)).zip(1..).collect();
    let unsaved = tempfile::tempdir().unwrap();
    for is_sync in [true, false] {
        let mut disk = disk(&before, false);
        let storage = disk.now().storage(false);
        let unsaved = unsaved.path().to_owned();
        let fs =
            mount_as(&storage, WriteConfig { sync: is_sync, unsaved, ..WriteConfig::default() });
        let user = User(&fs);
        type Step<'a> = (&'a str, Box<dyn Fn() + 'a>);
        let steps: Vec<Step<'_>> = vec![
            ("close of a new file", Box::new(|| user.write("new/e", b"first", false))),
            ("close of a longer one", Box::new(|| user.write("new/e", b"second", false))),
            ("close of an old one", Box::new(|| user.write("x", b"written", false))),
            ("a group", Box::new(|| user.write("new/zarr.json", GROUP, false))),
            ("unlink of its document", Box::new(|| user.unlink("new/zarr.json"))),
            ("link", Box::new(|| user.link("new/e", "linked"))),
            ("rename", Box::new(|| user.rename("x", "d/z"))),
            ("rename over", Box::new(|| user.rename("linked", "new/f"))),
            ("unlink", Box::new(|| user.unlink("d/y"))),
            ("a chunk", Box::new(|| user.write("a/c/1", b"chunk", false))),
            ("a file becomes a chunk", Box::new(|| user.rename("a/notes", "a/c/3"))),
            ("a chunk becomes a file", Box::new(|| user.rename("a/c/2", "d/was-2"))),
            (
                "rmdir",
                Box::new(|| {
                    user.made_parent("empty/-");
                    let (parent, name) = user.parent("empty").unwrap();
                    fs.rmdir(parent, name, &CALLER).unwrap();
                }),
            ),
        ];
        let mut lost = 0;
        for (what, step) in &steps {
            step();
            storage.take_history().iter().for_each(|change| disk.apply(change));
            let now = seen(disk.now());
            let states = disk.states(&mut Rng(1), 64, 16).into_iter();
            let differing = states.filter(|state| seen(state.clone()) != now).count();
            assert!(!is_sync || differing == 0, "{what}: {differing} states");
            lost += differing;
        }
        assert_eq!(lost > 0, !is_sync, "without the option a power cut takes some of it");
    }
}

//! Maps and dumps that appear, grow, are rewritten, or belong to another user.

use std::fs::{self, OpenOptions};
use std::io::Write;

use super::*;

const INNER: i32 = 7;

/// A process with its own root.
struct Scene {
    folder: tempfile::TempDir,
    names: JitReader,
}

impl Scene {
    /// Makes a process with this map from the start.
    fn with(map: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        if let Some(text) = map {
            fs::write(folder.path().join("tmp/perf-7.map"), text).unwrap();
        }
        let names = Self::names(&folder, None);
        Self { folder, names }
    }

    fn names(folder: &tempfile::TempDir, began: Option<SystemTime>) -> JitReader {
        let own = nix::unistd::geteuid().as_raw();
        let root = Root::at(folder.path(), own).unwrap();
        JitReader { began, ..JitReader::of(Some(root), INNER, SharedCode::default()) }
    }

    fn map(&self) -> PathBuf {
        self.folder.path().join("tmp/perf-7.map")
    }

    fn append(&self, text: &str) {
        let file = OpenOptions::new().append(true).create(true).open(self.map());
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Reads again, and returns the names at 0x1000 and at 0x2000.
    fn read(&mut self) -> [String; 2] {
        let program = self.names.known.lock().program;
        self.names.read(program, &[]);
        [0x1000, 0x2000].map(|avma| {
            let found = self.names.known.lock().code.find_at(avma, 1).resolved;
            found.and_then(|found| found.function).map_or(String::new(), |it| it.name)
        })
    }
}

#[test]
fn a_map_is_followed_as_it_grows_and_is_replaced() {
    for is_watched in [true, false] {
        let mut scene = Scene::with(None);
        if !is_watched {
            // The user has no watches left.
            scene.names.watch = MapWatch(None);
        }
        assert_eq!(scene.read(), ["", ""]);
        scene.append("1000 10 f\n2000 10 g");
        assert_eq!(scene.read(), ["f", ""]);
        let version = scene.names.known.lock().version;
        assert_eq!(
            (scene.read(), scene.names.known.lock().version),
            (["f".into(), String::new()], version)
        );
        scene.append("oes on\n");
        assert_eq!(scene.read(), ["f", "goes on"]);
        assert_ne!(scene.names.known.lock().version, version, "users of cached stacks must notice");
        fs::write(scene.map(), "1000 10 h\n").unwrap();
        assert_eq!(scene.read(), ["h", "goes on"], "shorter: it is read from the start");
        fs::remove_file(scene.map()).unwrap();
        scene.append("2000 10 another file\n");
        assert_eq!(scene.read(), ["h", "another file"], "{is_watched}");
        scene.append("1000 10 which grows\n");
        assert_eq!(scene.read(), ["which grows", "another file"], "{is_watched}");
    }
}

#[test]
fn an_existing_map_is_read_unless_it_is_older_than_the_process() {
    let mut scene = Scene::with(Some("1000 10 f\n"));
    let later = SystemTime::now() + Duration::from_secs(10);
    let mut late = Scene::names(&scene.folder, Some(later));
    assert_eq!(scene.read(), ["f", ""]);
    late.read(0, &[]);
    assert_eq!(
        late.known.lock().code.find_at(0x1000, 1).resolved,
        None,
        "the map of an earlier process with the same id"
    );
    let file = OpenOptions::new().append(true).open(scene.map()).unwrap();
    file.set_modified(later + Duration::from_secs(1)).unwrap();
    scene.append("2000 10 g\n");
    file.set_modified(later + Duration::from_secs(1)).unwrap();
    late.read(0, &[]);
    assert!(
        late.known.lock().code.find_at(0x1000, 1).resolved.is_some(),
        "the process has written to it"
    );
}

#[test]
fn names_are_dropped_with_their_program() {
    let mut scene = Scene::with(Some("1000 10 f\n"));
    assert_eq!(scene.read(), ["f", ""]);
    let version = scene.names.known.lock().version;
    scene.names.known.start_program();
    assert_ne!(scene.names.known.lock().version, version);
    assert_eq!(scene.read(), ["", ""], "the map of the previous program");
    // File times advance with the kernel's ticks.
    std::thread::sleep(Duration::from_millis(20));
    fs::write(scene.map(), "2000 10 g\n").unwrap();
    assert_eq!(scene.read(), ["", "g"]);
}

#[test]
fn a_map_that_is_written_again_is_read_from_its_start() {
    let mut scene = Scene::with(Some("1000 10 f\n"));
    assert_eq!(scene.read(), ["f", ""]);
    fs::write(scene.map(), "1000 10 half a na").unwrap();
    assert_eq!(scene.read(), ["f", ""]);
    fs::write(scene.map(), "1000 10 half a name\n2000 10 g\n").unwrap();
    assert_eq!(scene.read(), ["half a name", "g"]);
    fs::write(scene.map(), "1000 10 the same len\n2000 10 h\n").unwrap();
    assert_eq!(scene.read(), ["the same len", "h"]);
    fs::write(scene.map(), "1000 10 longer\n2000 10 than before\n3000 10 more\n").unwrap();
    assert_eq!(scene.read(), ["longer", "than before"]);
    scene.append("1000 10 appended\n");
    assert_eq!(scene.read(), ["appended", "than before"]);
}

#[test]
fn a_long_map_that_is_written_again_is_read_from_its_start() {
    let lines = |name: &str| -> String {
        (0..2000).map(|at| format!("{:x} 10 {name}\n", 0x1000 + at * 0x1000)).collect()
    };
    let mut scene = Scene::with(Some(&lines("f")));
    assert_eq!(scene.read(), ["f", "f"]);
    fs::write(scene.map(), lines("g")).unwrap();
    assert_eq!(scene.read(), ["g", "g"]);
    scene.append("2000 10 h\n");
    assert_eq!(scene.read(), ["g", "h"]);
}

#[test]
fn a_map_of_another_user_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tmp")).unwrap();
    fs::write(folder.path().join("elsewhere"), "1000 10 f\n").unwrap();
    std::os::unix::fs::symlink("../elsewhere", folder.path().join("tmp/perf-7.map")).unwrap();
    let mut names = Scene::names(&folder, None);
    names.read(0, &[]);
    assert_eq!(names.known.lock().code.find_at(0x1000, 1).resolved, None);
}

#[test]
fn a_dump_has_a_name_for_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jit-7.dump");
    let load = |time_ns: u64, name: &[u8]| {
        let words = [0, 0x1000, 0x1000, 0x20, 1].map(u64::to_le_bytes).concat();
        let len = (16 + words.len() + name.len()) as u32;
        let head = [0_u32.to_le_bytes(), len.to_le_bytes()].concat();
        [&head, &time_ns.to_le_bytes()[..], &words, name].concat()
    };
    let header = [&b"DTiJ"[..], &[1, 0, 0, 0], &[40, 0, 0, 0], &[0; 28]].concat();
    fs::write(&path, [header, load(100, b"f\0"), load(200, b"g\0")].concat()).unwrap();
    let descriptor = File::open(&path).unwrap().into();
    let dump = Arc::new(DumpFile { descriptor, file: ((0, 0), 1), path: String::new() });
    let mut names = Scene::names(&folder, None);
    names.read(0, &[dump]);
    let at = |time_ns| {
        let found = names.known.lock().code.find_at(0x1010, time_ns);
        (found.resolved.unwrap().function.unwrap().name, found.times_ns)
    };
    assert_eq!(at(150), ("f".to_string(), 100..200));
    assert_eq!(at(200), ("g".to_string(), 200..u64::MAX));
}

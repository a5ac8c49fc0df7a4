//! Maps and dumps that come, grow, are written anew, and are of somebody else.

use std::fs::{self, OpenOptions};
use std::io::Write;

use super::*;

const INNER: i32 = 7;

/// A process with a root of its own.
struct Scene {
    folder: tempfile::TempDir,
    writings: Arc<Writings>,
    names: JitReader,
}

impl Scene {
    /// With this map from the beginning on.
    fn with(map: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        if let Some(text) = map {
            fs::write(folder.path().join("tmp/perf-7.map"), text).unwrap();
        }
        let writings = Arc::<Writings>::default();
        let names = Self::names(&folder, &writings, None);
        Self { folder, writings, names }
    }

    fn names(
        folder: &tempfile::TempDir,
        writings: &Arc<Writings>,
        began: Option<SystemTime>,
    ) -> JitReader {
        let own = nix::unistd::geteuid().as_raw();
        let root = Root::at(folder.path(), own).unwrap();
        JitReader { began, ..JitReader::of(Some(root), INNER, writings, Shared::default()) }
    }

    fn map(&self) -> PathBuf {
        self.folder.path().join("tmp/perf-7.map")
    }

    fn append(&self, text: &str) {
        let file = OpenOptions::new().append(true).create(true).open(self.map());
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// What is at 0x1000 and at 0x2000 after another look.
    fn look(&mut self) -> [String; 2] {
        let program = self.names.known.lock().program;
        self.names.look(program, &[]);
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
            // All watches of the user are taken.
            scene.names.watch = Watch(None);
        }
        assert_eq!(scene.look(), ["", ""]);
        scene.append("1000 10 f\n2000 10 g");
        assert_eq!(scene.look(), ["f", ""]);
        let version = scene.names.known.lock().version;
        assert_eq!(
            (scene.look(), scene.names.known.lock().version),
            (["f".into(), String::new()], version)
        );
        scene.append("oes on\n");
        assert_eq!(scene.look(), ["f", "goes on"]);
        assert_ne!(scene.names.known.lock().version, version, "who keeps stacks must hear of it");
        fs::write(scene.map(), "1000 10 h\n").unwrap();
        assert_eq!(scene.look(), ["h", "goes on"], "shorter: it begins again");
        fs::remove_file(scene.map()).unwrap();
        scene.append("2000 10 another file\n");
        assert_eq!(scene.look(), ["h", "another file"], "{is_watched}");
        scene.append("1000 10 which grows\n");
        assert_eq!(scene.look(), ["which grows", "another file"], "{is_watched}");
    }
}

#[test]
fn a_map_that_is_there_is_read_unless_it_is_older_than_the_process() {
    let mut scene = Scene::with(Some("1000 10 f\n"));
    let later = SystemTime::now() + Duration::from_secs(10);
    let mut late = Scene::names(&scene.folder, &scene.writings, Some(later));
    assert_eq!(scene.look(), ["f", ""]);
    late.look(0, &[]);
    assert_eq!(
        late.known.lock().code.find_at(0x1000, 1).resolved,
        None,
        "of one that had its number"
    );
    let file = OpenOptions::new().append(true).open(scene.map()).unwrap();
    file.set_modified(later + Duration::from_secs(1)).unwrap();
    scene.append("2000 10 g\n");
    file.set_modified(later + Duration::from_secs(1)).unwrap();
    late.look(0, &[]);
    assert!(
        late.known.lock().code.find_at(0x1000, 1).resolved.is_some(),
        "it has taken it for its own"
    );
}

#[test]
fn names_go_with_their_program() {
    let mut scene = Scene::with(Some("1000 10 f\n"));
    assert_eq!(scene.look(), ["f", ""]);
    let version = scene.names.known.lock().version;
    scene.names.known.begin();
    assert_ne!(scene.names.known.lock().version, version);
    assert_eq!(scene.look(), ["", ""], "the map is that of the program before");
    // Its clock is that of the kernel's ticks.
    std::thread::sleep(Duration::from_millis(20));
    fs::write(scene.map(), "2000 10 g\n").unwrap();
    assert_eq!(scene.look(), ["", "g"]);
}

#[test]
fn a_map_that_is_asked_for_is_read_when_it_is_whole() {
    let mut scene = Scene::with(Some("1000 10 f\n"));
    assert_eq!(scene.look(), ["f", ""]);
    let (writings, map) = (Arc::clone(&scene.writings), scene.map());
    writings.write(&|| false, || {
        fs::write(&map, "1000 10 half a na").unwrap();
        assert_eq!(scene.look(), ["f", ""]);
        fs::write(&map, "1000 10 half a name\n2000 10 g\n").unwrap();
        assert_eq!(scene.look(), ["f", ""]);
    });
    assert_eq!(scene.look(), ["half a name", "g"]);
    // As long as before, of another content.
    writings.write(&|| false, || fs::write(&map, "1000 10 the others\n2000 10 h\n").unwrap());
    assert_eq!(scene.look(), ["the others", "h"]);
    // Somebody else writes it, too: another runtime, or an agent in the machine.
    scene.append("1000 10 told by itself\n");
    assert_eq!(scene.look(), ["told by itself", "h"]);
    writings.write(&|| false, || ());
    assert_eq!(scene.look(), ["told by itself", "h"]);
    scene.append("2000 10 and again\n");
    assert_eq!(scene.look(), ["told by itself", "and again"], "a question may be refused");
}

#[test]
fn a_strangers_map_is_none() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tmp")).unwrap();
    fs::write(folder.path().join("elsewhere"), "1000 10 f\n").unwrap();
    std::os::unix::fs::symlink("../elsewhere", folder.path().join("tmp/perf-7.map")).unwrap();
    let writings = Arc::<Writings>::default();
    let mut names = Scene::names(&folder, &writings, None);
    names.look(0, &[]);
    assert_eq!(names.known.lock().code.find_at(0x1000, 1).resolved, None);
}

#[test]
fn a_dump_names_each_time_by_itself() {
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
    let mut names = Scene::names(&folder, &Arc::default(), None);
    names.look(0, &[dump]);
    let at = |time_ns| {
        let found = names.known.lock().code.find_at(0x1010, time_ns);
        (found.resolved.unwrap().function.unwrap().name, found.times_ns)
    };
    assert_eq!(at(150), ("f".to_string(), 100..200));
    assert_eq!(at(200), ("g".to_string(), 200..u64::MAX));
}

//! What `scripts/package` packs, with a small file in place of a release build. `scripts/test-package`
//! installs and tries complete packages.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{has_command, skip};

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The files in a list of `tar`, without a prefix.
fn files(list: &str, prefix: &str) -> BTreeSet<String> {
    let paths = list.lines().filter_map(|line| line.split(prefix).nth(1));
    paths.filter(|path| !path.ends_with('/') && !path.is_empty()).map(str::to_owned).collect()
}

#[test]
fn packages_have_the_command_and_each_page_and_completion_in_its_place() {
    if !has_command("dpkg-deb") {
        skip!("dpkg-deb, which packs");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = tempfile::tempdir().unwrap();
    let packed = |name: &str| {
        let directory = place.path().join(name);
        let mut script = Command::new(root.join("scripts/package"));
        // As in an unpacked source tree, where no commit gives a time.
        script.env("GIT_DIR", place.path().join("none")).env_remove("SOURCE_DATE_EPOCH");
        output(script.args(["--binary", "/bin/true"]).arg(&directory));
        let version = env!("CARGO_PKG_VERSION");
        let deb = directory.join(format!("traceprof_{version}_amd64.deb"));
        (deb, directory.join(format!("traceprof-{version}-x86_64-linux.tar.xz")))
    };
    let (deb, tarball) = packed("one");
    let mut expected = BTreeSet::from(
        [
            "bin/traceprof",
            "share/bash-completion/completions/traceprof",
            "share/zsh/vendor-completions/_traceprof",
            "share/fish/vendor_completions.d/traceprof.fish",
        ]
        .map(str::to_owned),
    );
    for page in fs::read_dir(root.join("man")).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".png") {
            let section = name.rsplit('.').next().unwrap();
            expected.insert(format!("share/man/man{section}/{name}.gz"));
        }
    }
    assert!(expected.len() > 30, "{expected:?}");
    let mut in_tarball = files(&output(Command::new("tar").arg("-tf").arg(&tarball)), "linux/");
    assert!(in_tarball.remove("LICENSES"));
    assert_eq!(in_tarball, expected);
    let list = output(Command::new("dpkg-deb").arg("--contents").arg(&deb));
    let mut in_deb = files(&list, " ./usr/");
    for file in ["copyright", "changelog.gz"] {
        assert!(in_deb.remove(&format!("share/doc/traceprof/{file}")), "no {file}");
    }
    assert_eq!(in_deb, expected);
    assert!(list.lines().all(|line| line.contains(" root/root ")), "{list}");
    let control = output(Command::new("dpkg-deb").arg("--field").arg(&deb));
    let version = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(control.contains(&version) && !control.contains("Depends:"), "{control}");
    let copyright = "./usr/share/doc/traceprof/copyright";
    let mut tar = Command::new("sh");
    let line = format!("dpkg-deb --fsys-tarfile {} | tar -xO {copyright}", deb.display());
    let licences = output(tar.args(["-c", &line]));
    for part in ["The traceprof authors", "Apache License", "zstd-safe", "==== libc-"] {
        assert!(licences.contains(part), "no {part}");
    }
    // The same tree makes the same packages.
    let (again, tarball_again) = packed("two");
    assert!(fs::read(&deb).unwrap() == fs::read(again).unwrap());
    assert!(fs::read(&tarball).unwrap() == fs::read(tarball_again).unwrap());
}

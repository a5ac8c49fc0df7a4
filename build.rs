//! Compiles the freestanding agent image, which the tool embeds, and names the commit of a release.
//!
//! It calls plain `rustc` twice, without a nested cargo: for the shared crate as an rlib, then for
//! the agent as a shared object with `--cfg agent_image`. `-z defs` turns any reference that needs
//! a libc into a link error. The image is optimised in every profile, because it runs in another
//! program's process.

#[path = "build/commit.rs"]
mod commit;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=abi/src");
    println!("cargo::rerun-if-changed=agent/src");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let target = variable("TARGET");
    if !target.starts_with("x86_64-") || !target.contains("linux") {
        panic!("target {target}: traceprof's agent supports only x86_64 Linux");
    }
    println!("cargo::rustc-env=TRACEPROF_LONG_VERSION={}", long_version(&root));
    let abi = out.join("libtraceprof_abi.rlib");
    let mut shared = rustc(&target);
    shared.args(["--crate-name", "traceprof_abi", "--crate-type", "rlib"]);
    shared.arg("-o").arg(&abi).arg(root.join("abi/src/lib.rs"));
    run(&mut shared);
    let image = out.join("agent.so");
    if !link(&root, &abi, &image, &target, &lld()) {
        // The toolchain has no rust-lld: any linker driver will do.
        assert!(
            link(&root, &abi, &image, &target, &driver()),
            "the agent image could not be linked, neither by rust-lld nor through cc"
        );
    }
}

/// Returns what `--version` prints.
///
/// Only a release names its commit: each commit compiles the whole tool anew, which a developer would
/// wait for.
fn long_version(root: &Path) -> String {
    let version = variable("CARGO_PKG_VERSION");
    if variable("PROFILE") != "release" {
        return format!("{version} (debug build)");
    }
    match commit::of_tree(root) {
        Some(commit) => {
            for file in commit.files {
                println!("cargo::rerun-if-changed={}", file.display());
            }
            format!("{version} ({})", commit.name)
        }
        None => version,
    }
}

/// Returns a call of cargo's compiler, with the flags that both calls share.
fn rustc(target: &str) -> Command {
    let mut command = Command::new(variable("RUSTC"));
    // The flags of the surrounding build (coverage, sanitizers, target-cpu) must not affect the
    // image.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"]
    {
        command.env_remove(name);
    }
    command.args(["--edition", "2024", "--target", target, "--cfg", "agent_image"]);
    command.args(["-C", "panic=abort", "-C", "opt-level=3", "-C", "codegen-units=1"]);
    command.args(["-C", "relocation-model=pic", "-C", "debuginfo=0", "--cap-lints", "allow"]);
    command
}

fn lld() -> Vec<String> {
    let mut flags: Vec<String> =
        ["-Clinker=rust-lld", "-Clinker-flavor=ld.lld"].map(String::from).to_vec();
    for flag in [
        "-Bsymbolic",
        "-znorelro",
        "--build-id=none",
        "--no-eh-frame-hdr",
        "-zdefs",
        "--no-rosegment",
        "-zmax-page-size=4096",
        "--gc-sections",
        "-etraceprof_entry",
    ] {
        flags.push(format!("-Clink-arg={flag}"));
    }
    flags
}

fn driver() -> Vec<String> {
    let mut flags = vec!["-Clinker=cc".to_string()];
    for flag in [
        "-nostdlib",
        "-nostartfiles",
        "-Wl,-Bsymbolic,-z,norelro,--build-id=none,--no-eh-frame-hdr,-z,defs",
        "-Wl,-z,noseparate-code,-z,max-page-size=4096,-e,traceprof_entry",
    ] {
        flags.push(format!("-Clink-arg={flag}"));
    }
    flags
}

fn link(root: &Path, abi: &Path, image: &Path, target: &str, flags: &[String]) -> bool {
    let mut agent = rustc(target);
    agent.args(["--crate-name", "traceprof_agent", "--crate-type", "cdylib"]);
    agent.arg("-Clto=fat").args(flags);
    let dependency = format!("traceprof_abi={}", abi.display());
    agent.args(["--extern", &dependency]).arg("-o").arg(image).arg(root.join("agent/src/lib.rs"));
    agent.status().is_ok_and(|status| status.success())
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?} failed");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

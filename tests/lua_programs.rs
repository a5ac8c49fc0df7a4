//! Programs of Debian that contain LuaJIT: a server and an editor.

use std::process::Stdio;
use std::time::Duration;

use crate::common::lua_callers::LuaCallers;
use crate::common::managed_frames::ALL_SAMPLES;
use crate::common::served::{Client, Served, asks_http, free_port};
use crate::common::{
    LuaJit, Outcome, Target, needs_recording, record_cpu, record_cpu_and_end, scratch_dir, script,
    skip, together, wait_until,
};

/// Checks the functions of a program in all samples, and that they are there. At least so many per
/// cent of the stacks reach the root.
fn check(label: &str, program: &LuaCallers, outcome: &Outcome, least: u64) {
    let seen = program.check(label, outcome);
    eprintln!("{label}: {seen:?}\n{}", outcome.text());
    assert!(seen.calls > 1000, "{label}: {seen:?}\n{}", outcome.text());
    assert_eq!(program.missing(&seen), [""; 0], "{label}: {seen:?}");
    let [samples, named] =
        ["samples.lua", "samples_named.lua"].map(|key| outcome.trace.number(key));
    assert!(named * 100 > samples * 98, "{label}: {named} of {samples}\n{}", outcome.text());
    let [samples, rooted] = ["samples", "rooted"].map(|key| outcome.trace.number(key));
    assert!(rooted * 100 > samples * least, "{label}: {rooted} of {samples}\n{}", outcome.text());
}

/// The server runs each request in a coroutine. Its modules call functions of C from compiled code,
/// which run regular expressions that are compiled as well.
#[test]
fn functions_in_nginx_have_their_callers() {
    needs_recording!();
    let Some((mut command, root)) = LuaJit::inside("nginx") else {
        skip!("nginx with LuaJIT: not installed");
    };
    let _machine = together();
    let (folder, port) = (scratch_dir(), free_port());
    let (home, root) = (folder.path().display(), root.display());
    let module = |name| format!("load_module {root}/usr/lib/nginx/modules/{name}_module.so;\n");
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {home}/{name};\n"));
    let text = format!(
        "{}{}daemon off; master_process off; pid {home}/pid; error_log {home}/error.log;\n\
         events {{}}\nhttp {{\naccess_log off;\n{}\
         lua_package_path \"{root}/usr/share/lua/5.1/?.lua;;\";\n\
         server {{ listen 127.0.0.1:{port};\n\
         location / {{ content_by_lua_file {}; }}\n}}\n}}\n",
        module("ndk_http"),
        module("ngx_http_lua"),
        temporary.concat(),
        script("lua/page.lua").display(),
    );
    let settings = folder.path().join("nginx.conf");
    std::fs::write(&settings, text).expect("a file");
    command.arg("-p").arg(folder.path()).arg("-c").arg(&settings);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Served(command.spawn().expect("a server"));
    let asks = move |number| asks_http(port, &format!("{number}"));
    let answers = wait_until(Duration::from_secs(20), || asks(1));
    let errors = std::fs::read_to_string(folder.path().join("error.log"));
    assert!(answers, "it answers: {errors:?}");
    let client = Client::start(asks);
    let outcome = record_cpu(server.0.id() as i32, Duration::from_secs(3), &ALL_SAMPLES);
    let answers = client.finish();
    assert!(answers > 100, "{answers} answers");
    let page = LuaCallers::of("page.lua", include_str!("targets/lua/page.lua"));
    // The code of regular expressions keeps no frame pointer: 1 to 4 % of the samples.
    check("nginx", &page, &outcome, 90);
    assert!(server.0.try_wait().expect("a server").is_none(), "it lives");
}

/// The editor's own language calls functions of Lua that have called it.
#[test]
fn functions_in_neovim_have_their_callers() {
    needs_recording!();
    let Some((mut command, root)) = LuaJit::inside("nvim") else {
        skip!("neovim with LuaJIT: not installed");
    };
    let _machine = together();
    command.args(["--headless", "-u", "NONE", "-i", "NONE", "-n", "-S"]);
    command.arg(script("lua/editor.lua"));
    command.env("VIMRUNTIME", root).stderr(Stdio::null());
    let target = Target::spawn(command);
    let outcome = record_cpu_and_end(target, Duration::from_secs(3), &ALL_SAMPLES);
    let editor = LuaCallers::of("editor.lua", include_str!("targets/lua/editor.lua"));
    check("neovim", &editor, &outcome, 99);
}

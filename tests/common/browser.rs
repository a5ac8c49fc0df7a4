//! Headless Chromium, driven by the DevTools protocol over two pipes.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::scratch_dir;

/// The command that the tests start.
pub(crate) const BROWSER: &str = "chromium";
/// Timeout of an answer, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: File,
    from: Receiver<Json>,
    session: Option<String>,
    calls: u64,
    /// Events that the browser reported by itself.
    events: Vec<Json>,
    _dir: TempDir,
}

impl Browser {
    /// Opens the page in a file, in a window of this size. `fragment` is the part of the URL after
    /// the #.
    pub(crate) fn open(page: &Path, fragment: &str, (width, height): (u32, u32)) -> Self {
        let mut browser = Self::start();
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        browser.call("Emulation.setDeviceMetricsOverride", size);
        let url = format!("file://{}{fragment}", page.display());
        browser.call("Page.navigate", json!({ "url": url }));
        browser.wait_for("document.documentElement.dataset.ready === 'yes'");
        browser
    }

    fn start() -> Self {
        let dir = scratch_dir();
        let pipes = ["in", "out"].map(|name| dir.path().join(name));
        for pipe in &pipes {
            mkfifo(pipe, Mode::S_IRWXU).expect("a pipe");
        }
        // Opening a FIFO for reading and writing does not block.
        let to = OpenOptions::new().read(true).write(true).open(&pipes[0]).expect("a pipe");
        let words = pipes[1].clone();
        let mut command = Command::new("sh");
        command
            .args(["-c", "in=$1 out=$2; shift 2; exec \"$@\" 3<\"$in\" 4>\"$out\"", "sh"])
            .args(&pipes)
            // Chromium's sandbox refuses to run as root. The page is our own.
            .args([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage"])
            .args(["--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().expect(BROWSER);
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            // The thread blocks on the browser's pipe and exits with the browser.
            let messages =
                BufReader::new(File::open(words).expect("a pipe")).split(0).map_while(Result::ok);
            for message in messages.filter_map(|it| serde_json::from_slice(&it).ok()) {
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        Self { child, to, from: receiver, session: None, calls: 0, events: Vec::new(), _dir: dir }
    }

    /// Calls a method and waits for its result.
    pub(crate) fn call(&mut self, method: &str, params: Json) -> Json {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        write!(self.to, "{message}\0").expect("a message");
        loop {
            let mut answer = self.from.recv_timeout(PATIENCE).expect("an answer of the browser");
            if answer["id"] != self.calls {
                self.events.push(answer);
                continue;
            }
            assert!(answer["error"].is_null(), "{method}: {answer}");
            return answer["result"].take();
        }
    }

    /// Returns the value of an expression in the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Json {
        let mut answer = self.try_evaluate(expression);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    fn try_evaluate(&mut self, expression: &str) -> Json {
        let params =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        self.call("Runtime.evaluate", params)
    }

    /// Returns the text of an element.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let text =
            self.evaluate(&format!("document.querySelector({}).textContent", json!(selector)));
        text.as_str().expect(selector).to_owned()
    }

    /// Returns a number that the page stores in a data attribute beside its text.
    pub(crate) fn number(&mut self, selector: &str, name: &str) -> f64 {
        let value =
            self.evaluate(&format!("document.querySelector({}).dataset.{name}", json!(selector)));
        value
            .as_str()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("{selector}: {value}"))
    }

    pub(crate) fn wait_for(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        // The page or the element may not exist yet.
        while self.try_evaluate(expression)["result"]["value"] != true {
            assert!(Instant::now() < deadline, "never: {expression}; {:?}", self.problems());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Moves, presses or releases the pointer.
    pub(crate) fn mouse(&mut self, kind: &str, (x, y): (f64, f64)) {
        let pressed = i32::from(kind != "mouseReleased");
        let button = if kind == "mouseMoved" { "none" } else { "left" };
        let params = json!({ "type": kind, "x": x, "y": y, "button": button, "buttons": pressed, "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", params);
    }

    /// Drags from one position to another.
    pub(crate) fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.mouse("mouseMoved", from);
        self.mouse("mousePressed", from);
        self.mouse("mouseMoved", ((from.0 + to.0) / 2.0, to.1));
        self.mouse("mouseMoved", to);
        self.mouse("mouseReleased", to);
    }

    /// Presses and releases a button of the mouse at a position, `clicks` times in a row.
    pub(crate) fn press(&mut self, (x, y): (f64, f64), button: &str, clicks: u32) {
        for count in 1..=clicks {
            for (kind, buttons) in [("mousePressed", 1), ("mouseReleased", 0)] {
                let params = json!({ "type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": count });
                self.call("Input.dispatchMouseEvent", params);
            }
        }
    }

    /// Turns the wheel with Ctrl held.
    pub(crate) fn zoom_wheel(&mut self, (x, y): (f64, f64), delta: f64) {
        let params = json!({ "type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": delta, "modifiers": 2 });
        self.call("Input.dispatchMouseEvent", params);
    }

    /// Returns the elapsed time and the CPU time in milliseconds of each task of the page while `act`
    /// runs, the longest first, from the browser's own trace.
    pub(crate) fn tasks_during(&mut self, act: impl FnOnce(&mut Self)) -> Vec<[f64; 2]> {
        let categories = json!(["toplevel", "devtools.timeline"]);
        let config = json!({ "includedCategories": categories });
        let params = json!({ "transferMode": "ReportEvents", "traceConfig": config });
        self.call("Tracing.start", params);
        let begin = self.events.len();
        act(self);
        self.call("Tracing.end", json!({}));
        while !self.events.iter().any(|event| event["method"] == "Tracing.tracingComplete") {
            let event = self.from.recv_timeout(PATIENCE).expect("an event of the browser");
            self.events.push(event);
        }
        let events: Vec<Json> = self.events.drain(begin..).collect();
        let traced = events.iter().filter(|event| event["method"] == "Tracing.dataCollected");
        let all: Vec<&Json> =
            traced.filter_map(|event| event["params"]["value"].as_array()).flatten().collect();
        let thread = |event: &Json| (event["pid"].as_u64(), event["tid"].as_u64());
        let frame = all.iter().find(|event| event["name"] == "FireAnimationFrame");
        let page = thread(frame.expect("a frame"));
        let tasks = all.iter().filter(|event| {
            thread(event) == page
                && event["name"].as_str().is_some_and(|it| it.ends_with("RunTask"))
        });
        let ms = |event: &Json, key: &str| Some(event[key].as_f64()? / 1000.0);
        let mut tasks: Vec<[f64; 2]> =
            tasks.filter_map(|event| Some([ms(event, "dur")?, ms(event, "tdur")?])).collect();
        tasks.sort_by(|one, other| other[0].total_cmp(&one[0]));
        tasks
    }

    /// Presses a key. A single character is also typed as text.
    pub(crate) fn key(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { key } else { "" };
        let kind = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key, "text": text }));
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyUp", "key": key }));
    }

    /// Returns the rectangle of an element on the page: left, top, width, height.
    pub(crate) fn place(&mut self, selector: &str) -> [f64; 4] {
        let selector = json!(selector);
        let place = self.evaluate(&format!(
            "(({{x, y, width, height}}) => [x, y, width, height])\
             (document.querySelector({selector}).getBoundingClientRect())"
        ));
        std::array::from_fn(|at| place[at].as_f64().expect("a number"))
    }

    /// Returns everything that went wrong in the page: exceptions, console errors, and network
    /// requests other than for the page itself.
    pub(crate) fn problems(&self) -> Vec<String> {
        let is_problem = |event: &&Json| {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" => true,
                "Runtime.consoleAPICalled" => params["type"] == "error",
                "Log.entryAdded" => params["entry"]["level"] == "error",
                "Network.requestWillBeSent" => params["type"] != "Document",
                _ => false,
            }
        };
        self.events.iter().filter(is_problem).map(Json::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser exits by itself when its first process exits, so there may be no process to
        // kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! How much stack the handler uses, computed from its machine code: along every path, and with the
//! 128 bytes below the stack pointer that functions without calls may use.

use std::cell::RefCell;
use std::collections::HashMap;

use traceprof_abi::layout::{HANDLER_NEED_BYTES, HANDLER_STACK_BYTES};

use super::agent_image::disassembly;

/// The only function that changes the stack pointer to another stack.
const SWITCH: &str = "call_on";

struct Instruction {
    address: u64,
    text: String,
}

impl Instruction {
    fn operation(&self) -> &str {
        self.text.split(' ').next().unwrap_or_default()
    }

    /// Returns the address that a direct jump or call names.
    fn target(&self) -> Option<u64> {
        let word = self.text.split_whitespace().nth(1)?;
        u64::from_str_radix(word, 16).ok()
    }

    fn is_indirect(&self) -> bool {
        self.text.contains('*')
    }

    /// Returns by how much the instruction lowers the stack pointer.
    fn lowers(&self, function: &str) -> i64 {
        let moved = |word: &str| {
            let number = word.strip_prefix("$0x").and_then(|it| it.strip_suffix(",%rsp"));
            number.map(|it| u64::from_str_radix(it, 16).expect("a number") as i64)
        };
        let operand = self.text.split_whitespace().nth(1).unwrap_or_default();
        match (self.operation(), moved(operand)) {
            ("push" | "pushf", _) => 8,
            ("pop" | "popf", _) => -8,
            ("sub", Some(bytes)) => bytes,
            ("add", Some(bytes)) => -bytes,
            // What it compares and tests stays as it is.
            ("cmp" | "test", _) => 0,
            _ => {
                let is_written = self.text.ends_with(",%rsp");
                assert!(!is_written || function.contains(SWITCH), "{function}: {}", self.text);
                0
            }
        }
    }

    /// Returns the largest distance below the stack pointer that it reads or writes.
    fn below(&self) -> u64 {
        let places = self.text.split(['\t', ' ', ',']).filter(|it| it.contains("(%rsp"));
        let distance =
            |it: &str| u64::from_str_radix(it.strip_prefix("-0x")?.split('(').next()?, 16).ok();
        places.filter_map(distance).max().unwrap_or(0)
    }
}

struct Function {
    name: String,
    code: Vec<Instruction>,
}

struct Program {
    functions: HashMap<u64, Function>,
    needs: RefCell<HashMap<u64, Option<u64>>>,
}

impl Program {
    fn read(text: &str) -> Self {
        let mut functions = HashMap::new();
        let mut current = 0;
        for line in text.lines() {
            let hex = |word: &str| u64::from_str_radix(word.trim(), 16).ok();
            if let Some((start, name)) = line.strip_suffix(">:").and_then(|it| it.split_once(" <"))
            {
                current = hex(start).expect("an address");
                functions.insert(current, Function { name: name.into(), code: Vec::new() });
            } else if let Some((address, code)) = line.split_once(":\t")
                && let Some(address) = hex(address)
                && let Some(function) = functions.get_mut(&current)
            {
                // Without prefixes that change nothing here.
                let code = code.split("lock ").last().unwrap_or_default().trim();
                let text = code.split_whitespace().collect::<Vec<_>>().join(" ");
                function.code.push(Instruction { address, text });
            }
        }
        Self { functions, needs: RefCell::default() }
    }

    /// Returns the need of the only function whose name contains this.
    fn need_of(&self, name: &str) -> u64 {
        let mut found = self.functions.iter().filter(|(_, it)| it.name.contains(name));
        let (&start, _) = found.next().unwrap_or_else(|| panic!("no function {name}"));
        assert!(found.next().is_none(), "several functions {name}");
        self.need(start)
    }

    /// Returns the stack that a function needs below its return address.
    fn need(&self, start: u64) -> u64 {
        let function = self.functions.get(&start).unwrap_or_else(|| panic!("no code at {start:x}"));
        if let Some(known) = self.needs.borrow().get(&start) {
            return known.unwrap_or_else(|| panic!("{} calls itself", function.name));
        }
        self.needs.borrow_mut().insert(start, None);
        let need = self.walk(function);
        self.needs.borrow_mut().insert(start, Some(need));
        need
    }

    fn walk(&self, function: &Function) -> u64 {
        let code = &function.code;
        let index_of: HashMap<u64, usize> =
            code.iter().enumerate().map(|(index, it)| (it.address, index)).collect();
        let mut depths: Vec<Option<i64>> = vec![None; code.len()];
        let (mut most, mut table) = (0, None);
        let mut open = vec![(0, 0)];
        loop {
            let Some((index, depth)) = open.pop() else {
                // The cases of a jump table are the code to which nothing else leads.
                let Some(depth) = table else { return most };
                let is_case = |at: &usize| depths[*at].is_none() && !is_padding(&code[*at]);
                match (0..code.len()).find(is_case) {
                    Some(index) => open.push((index, depth)),
                    None => return most,
                }
                continue;
            };
            let Some(instruction) = code.get(index) else { continue };
            if let Some(before) = depths[index] {
                assert_eq!(before, depth, "{}: {:x}", function.name, instruction.address);
                continue;
            }
            depths[index] = Some(depth);
            let after = depth + instruction.lowers(&function.name);
            assert!(after >= 0, "{}: {}", function.name, instruction.text);
            most = most.max(after as u64).max(depth as u64 + instruction.below());
            let operation = instruction.operation();
            let target = instruction.target().filter(|_| operation.starts_with(['j', 'c']));
            let called = match (operation, target) {
                ("call", Some(target)) => 8 + self.need(target),
                // The switch calls on another stack. Other functions call only the four functions
                // for the compiler in this way, which have no stack.
                ("call", None) => 8,
                (operation, Some(target)) if operation.starts_with('j') => {
                    match index_of.get(&target) {
                        Some(&inside) => {
                            open.push((inside, after));
                            0
                        }
                        None => self.need(target),
                    }
                }
                _ => 0,
            };
            most = most.max(depth as u64 + called);
            match operation {
                "ret" | "ud2" => {}
                "jmp" if instruction.is_indirect() => table = Some(depth),
                "jmp" => {}
                _ => open.push((index + 1, after)),
            }
        }
    }
}

fn is_padding(instruction: &Instruction) -> bool {
    let unused = ["nop", "int3", "xchg", "cs", "data16"];
    unused.iter().any(|it| instruction.operation().starts_with(it))
}

/// The state of a sample is in memory of the thread's slot.
#[test]
fn the_handler_needs_little_of_the_threads_stack() {
    let program = Program::read(&disassembly());
    for name in ["memcpy", "memmove", "memset", "memcmp"] {
        assert_eq!(program.need_of(name), 0, "{name}");
    }
    let threads = program.need_of("traceprof_handler");
    assert!((100..=HANDLER_NEED_BYTES).contains(&threads), "{threads} bytes");
    let own = program.need_of("take_once");
    assert!((1000..=HANDLER_STACK_BYTES * 3 / 4).contains(&own), "{own} bytes");
}

/// The walk itself sees the paths that it is for.
#[test]
fn the_deepest_path_counts() {
    let text = "\
0000000000001000 <outer>:
    1000:\tpush   %rbp
    1001:\tsub    $0x20,%rsp
    1005:\tje     1010 <outer+0x10>
    1007:\tcall   2000 <inner>
    100c:\tadd    $0x20,%rsp
    100d:\tpop    %rbp
    100e:\tret
    1010:\tadd    $0x20,%rsp
    1014:\tpop    %rbp
    1015:\tjmp    3000 <tail>

0000000000002000 <inner>:
    2000:\tmov    %rax,-0x18(%rsp)
    2005:\tlock incq -0x8(%rsp)
    200a:\tret

0000000000003000 <tail>:
    3000:\tsub    $0x100,%rsp
    3004:\tjmp    *%rax
    3006:\tadd    $0x100,%rsp
    300a:\tret
    300b:\tnop
";
    let program = Program::read(text);
    assert_eq!(["inner", "tail", "outer"].map(|it| program.need_of(it)), [0x18, 0x100, 0x100]);
    let short = Program::read(&text.replace("$0x100", "$0x8"));
    assert_eq!(short.need_of("outer"), 8 + 0x20 + 8 + 0x18);
}

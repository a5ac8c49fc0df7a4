//! The paths through the code of a gap.
//!
//! Known functions are followed first, then those that they call, then what no path reaches: the
//! targets of jump tables, and functions that are called through pointers. A call may never return,
//! and nothing says so: what is behind it then belongs to another function. So code can have more
//! than one state. The right one leads to a return with the return address at the top of the stack.
//! No other one does: at a call, the stack is aligned to 16 bytes, and at a function's start it is
//! not.

use std::collections::{BTreeSet, HashMap};

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use super::super::rows::RuleRange;
use super::state::FrameState;
use super::step::FrameStepper;

/// Number of instructions that are followed for each byte of code, and beyond that.
const WORK_PER_BYTE: usize = 1;
const WORK_MIN: usize = 4096;
/// What a group costs, in instructions.
const WORK_OF_GROUP: usize = 16;
/// Most states of an instruction.
const STATES_MAX: usize = 4;

/// An instruction that a path has reached with a state.
#[derive(Debug, Clone, Copy)]
struct KnownInstruction {
    state: FrameState,
    group: u32,
    /// Another state of the same instruction.
    other: Option<u32>,
    len: u8,
    /// Whether the path ends here.
    is_end: bool,
}

/// Instructions that jumps connect, up to the next calls.
#[derive(Debug, Clone)]
struct Group {
    /// The first byte, and that of the function.
    start: u32,
    function: u32,
    kind: GroupKind,
    /// Groups in whose code a path goes on.
    into: Vec<u32>,
    /// Groups to which calls return.
    returned: Vec<u32>,
    /// Whether a path finds another return address than its own.
    is_bad: bool,
    /// Whether a path finds its return address.
    is_proved: bool,
    /// Whether it calls with a stack that is aligned, and with one that is not.
    calls: [bool; 2],
}

impl Group {
    /// Whether it is the beginning of a function, although nothing proves it.
    fn is_likely(&self) -> bool {
        self.kind == GroupKind::Entry && !self.is_bad && self.calls == [true, false]
    }
}

/// How a group is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupKind {
    /// As a function.
    Entry,
    /// By the return of a call.
    Returned,
    /// By no path.
    Hole,
}

/// How an instruction goes on.
enum Onward {
    On,
    /// To the next one and to a target.
    Branch(Option<u32>),
    Jump(Option<u32>),
    /// To an address that is not known.
    IndirectJump,
    Call(Option<u32>),
    Return,
    /// Nowhere.
    End,
}

impl Onward {
    /// Whether the next instruction is not reached from here.
    fn is_end(&self) -> bool {
        !matches!(self, Self::On | Self::Branch(_) | Self::Call(_))
    }
}

/// A path that is still to be followed.
struct Path {
    at: u32,
    state: FrameState,
    group: u32,
}

/// Whether an instruction stands between functions.
fn is_padding(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
}

/// The states of the instructions of a gap.
pub(super) struct GapFlow<'a> {
    code: &'a [u8],
    svma: u64,
    decoder: Decoder<'a>,
    stepper: FrameStepper,
    places: Vec<KnownInstruction>,
    /// For each byte the place of the instruction that starts there.
    firsts: Vec<Option<u32>>,
    groups: Vec<Group>,
    paths: Vec<Path>,
    /// Functions that are known or called.
    functions: BTreeSet<u32>,
    called: Vec<u32>,
    /// The states at jumps through tables, by function.
    tables: HashMap<u32, Vec<FrameState>>,
    work: usize,
}

impl<'a> GapFlow<'a> {
    /// Follows the code of a gap, in which functions start at these offsets.
    pub(super) fn of(code: &'a [u8], svma: u64, starts: &[u32]) -> Self {
        let mut flow = Self {
            code,
            svma,
            decoder: Decoder::with_ip(64, code, svma, DecoderOptions::NONE),
            stepper: FrameStepper::new(),
            places: Vec::new(),
            firsts: vec![None; code.len()],
            groups: Vec::new(),
            paths: Vec::new(),
            functions: BTreeSet::new(),
            called: starts.iter().copied().filter(|at| (*at as usize) < code.len()).collect(),
            tables: HashMap::new(),
            work: code.len() * WORK_PER_BYTE + WORK_MIN,
        };
        flow.functions.extend(&flow.called);
        for start in std::mem::take(&mut flow.called) {
            flow.follow(start, (start, GroupKind::Entry), FrameState::CALLED);
        }
        flow.follow_called();
        flow.follow_holes();
        flow.judge();
        flow.follow_unproved();
        flow.judge();
        flow
    }

    fn follow_called(&mut self) {
        while let Some(start) = self.called.pop().filter(|_| self.work > 0) {
            if self.functions.insert(start) {
                self.follow(start, (start, GroupKind::Entry), FrameState::CALLED);
            }
        }
    }

    /// Follows all paths from an offset.
    fn follow(&mut self, at: u32, (function, kind): (u32, GroupKind), state: FrameState) {
        let group = self.group(at, function, kind);
        self.paths.push(Path { at, state, group });
        while let Some(path) = self.paths.pop().filter(|_| self.work > 0) {
            self.walk(path);
        }
    }

    fn group(&mut self, start: u32, function: u32, kind: GroupKind) -> u32 {
        self.work = self.work.saturating_sub(WORK_OF_GROUP);
        self.groups.push(Group {
            start,
            function,
            kind,
            into: Vec::new(),
            returned: Vec::new(),
            is_bad: false,
            is_proved: false,
            calls: [false; 2],
        });
        self.groups.len() as u32 - 1
    }

    /// Follows a path to its end, to a call or to an instruction that is known.
    fn walk(&mut self, Path { mut at, mut state, group }: Path) {
        let mut instruction = Instruction::default();
        // A call that leads on to another function does not return.
        let Group { start, kind, .. } = self.groups[group as usize];
        let mut is_behind_call = kind == GroupKind::Returned;
        let mut is_straight = kind == GroupKind::Entry && at == start;
        while !self.meets(at, &state, group) {
            if is_behind_call && self.functions.contains(&at) {
                return;
            }
            let Some(len) = self.decode(at, &mut instruction) else {
                self.groups[group as usize].is_bad = true;
                return;
            };
            is_behind_call &= is_padding(&instruction);
            let next = self.next(&instruction);
            self.insert(
                at,
                KnownInstruction { state, group, other: None, len, is_end: next.is_end() },
            );
            match next {
                Onward::On => self.stepper.apply(&instruction, &mut state),
                Onward::Branch(Some(at)) => self.paths.push(Path { at, state, group }),
                // Outside may be another function, or a distant part of this one.
                Onward::Branch(None) => {}
                Onward::Jump(Some(target)) => {
                    (at, is_straight) = (target, false);
                    continue;
                }
                Onward::Jump(None) => return,
                Onward::Call(target) => {
                    self.called.extend(target);
                    return self.call(at + u32::from(len), state, group);
                }
                Onward::Return => {
                    let group = &mut self.groups[group as usize];
                    group.is_proved |= state.is_at_return();
                    group.is_bad |= state.is_known() && !state.is_at_return();
                    return;
                }
                // A function may do no more than to call another one through a pointer.
                Onward::IndirectJump if is_straight && state == FrameState::CALLED => {
                    self.groups[group as usize].is_proved = true;
                    return;
                }
                Onward::IndirectJump => return self.note_table(state, group),
                Onward::End => return,
            }
            at += u32::from(len);
        }
    }

    /// Whether the path goes on in code that is known with its state, or behind the gap.
    fn meets(&mut self, at: u32, state: &FrameState, group: u32) -> bool {
        let Some(first) = self.firsts.get(at as usize) else { return true };
        let (mut next, mut states) = (*first, 0);
        while let Some(place) = next.map(|index| self.places[index as usize]) {
            if place.state == *state {
                if place.group != group {
                    self.groups[group as usize].into.push(place.group);
                }
                return true;
            }
            (next, states) = (place.other, states + 1);
        }
        let is_full = states == STATES_MAX;
        self.groups[group as usize].is_bad |= is_full;
        is_full
    }

    fn insert(&mut self, at: u32, mut place: KnownInstruction) {
        let Some(first) = self.firsts.get_mut(at as usize) else { return };
        place.other = first.replace(self.places.len() as u32);
        self.places.push(place);
    }

    /// Lets the code behind a call begin a group.
    fn call(&mut self, at: u32, state: FrameState, group: u32) {
        let function = self.groups[group as usize].function;
        let returned = self.group(at, function, GroupKind::Returned);
        let group = &mut self.groups[group as usize];
        group.calls[usize::from(!state.is_aligned())] = true;
        // A part of a function that was taken for a function does not align the stack. It may end
        // with a call, and be followed by a function.
        if state.is_aligned() {
            group.returned.push(returned);
        }
        self.paths.push(Path { at, state, group: returned });
    }

    fn note_table(&mut self, state: FrameState, group: u32) {
        let states = self.tables.entry(self.groups[group as usize].function).or_default();
        if state.is_known() && !states.contains(&state) && states.len() + 1 < STATES_MAX {
            states.push(state);
        }
    }

    /// Decodes the instruction at an offset, and returns its length.
    fn decode(&mut self, at: u32, instruction: &mut Instruction) -> Option<u8> {
        self.work = self.work.checked_sub(1)?;
        self.decoder.set_position(at as usize).ok()?;
        self.decoder.set_ip(self.svma.wrapping_add(u64::from(at)));
        self.decoder.decode_out(instruction);
        (!instruction.is_invalid()).then_some(instruction.len() as u8)
    }

    fn next(&self, instruction: &Instruction) -> Onward {
        let target = || {
            let at = instruction.near_branch_target().wrapping_sub(self.svma);
            u32::try_from(at).ok().filter(|at| (*at as usize) < self.code.len())
        };
        // Such a call pushes its own address.
        let is_pushed = || {
            let behind = instruction.next_ip().wrapping_sub(self.svma) as usize;
            let pop = self.code.get(behind).is_some_and(|byte| matches!(byte, 0x58..=0x5F));
            pop && instruction.near_branch_target() == instruction.next_ip()
        };
        match instruction.flow_control() {
            _ if instruction.mnemonic() == Mnemonic::Hlt => Onward::End,
            FlowControl::Next | FlowControl::XbeginXabortXend => Onward::On,
            FlowControl::ConditionalBranch => Onward::Branch(target()),
            FlowControl::UnconditionalBranch => Onward::Jump(target()),
            FlowControl::IndirectBranch => Onward::IndirectJump,
            FlowControl::Call if matches!(instruction.code(), Code::Syscall | Code::Sysenter) => {
                Onward::On
            }
            FlowControl::Call if is_pushed() => Onward::On,
            FlowControl::Call => Onward::Call(target()),
            FlowControl::IndirectCall => Onward::Call(None),
            FlowControl::Interrupt => Onward::On,
            FlowControl::Return => Onward::Return,
            _ => Onward::End,
        }
    }

    /// Follows what no path reaches: code behind the end of a path, and at the start of the gap.
    fn follow_holes(&mut self) {
        let (mut at, mut is_after_end) = (0, true);
        let mut instruction = Instruction::default();
        while let Some(first) = self.firsts.get(at as usize).filter(|_| self.work > 0) {
            if let Some(place) = first.map(|index| self.places[index as usize]) {
                (at, is_after_end) = (at + u32::from(place.len), place.is_end);
                continue;
            }
            let Some(len) = self.decode(at, &mut instruction) else {
                (at, is_after_end) = (at + 1, false);
                continue;
            };
            if is_padding(&instruction) {
                at += u32::from(len);
            } else if is_after_end {
                self.follow_hole(at);
            } else {
                (at, is_after_end) = (at + u32::from(len), self.next(&instruction).is_end());
            }
        }
    }

    /// Follows a hole as a target of its function's jump table, and as a function.
    fn follow_hole(&mut self, at: u32) {
        if let Some(function) = self.functions.range(..=at).next_back().copied() {
            for state in self.tables.get(&function).cloned().unwrap_or_default() {
                self.follow(at, (function, GroupKind::Hole), state);
            }
        }
        self.follow(at, (at, GroupKind::Hole), FrameState::CALLED);
        self.follow_called();
    }

    /// Follows code behind calls that may never return, as functions.
    fn follow_unproved(&mut self) {
        let unproved = self
            .those(|group| group.kind == GroupKind::Returned && (group.is_bad || !group.is_proved));
        let mut instruction = Instruction::default();
        for index in unproved {
            let mut at = self.groups[index].start;
            while let Some(len) = self.decode(at, &mut instruction) {
                if !is_padding(&instruction) {
                    self.follow(at, (at, GroupKind::Hole), FrameState::CALLED);
                    break;
                }
                at += u32::from(len);
            }
        }
        self.follow_called();
    }

    /// Decides which groups are right: what leads to a wrong return is wrong. What leads to a right
    /// one is right, behind calls, too.
    fn judge(&mut self) {
        let mut before = vec![(Vec::new(), Vec::new()); self.groups.len()];
        for (index, group) in self.groups.iter().enumerate() {
            group.into.iter().for_each(|next| before[*next as usize].0.push(index));
            group.returned.iter().for_each(|next| before[*next as usize].1.push(index));
        }
        let mut bad = self.those(|group| group.is_bad);
        while let Some(index) = bad.pop() {
            self.groups[index].is_bad = true;
            bad.extend(before[index].0.iter().filter(|it| !self.groups[**it].is_bad));
        }
        let mut right = self.those(|group| group.is_proved && !group.is_bad);
        while let Some(index) = right.pop() {
            let earlier = before[index].0.iter().chain(&before[index].1);
            self.prove(earlier.copied(), &mut right);
        }
    }

    /// Marks those of these groups that nothing contradicts as right.
    fn prove(&mut self, these: impl Iterator<Item = usize>, right: &mut Vec<usize>) {
        for index in these {
            let group = &mut self.groups[index];
            if !group.is_bad && !std::mem::replace(&mut group.is_proved, true) {
                right.push(index);
            }
        }
    }

    fn those(&self, are: impl Fn(&Group) -> bool) -> Vec<usize> {
        let groups = self.groups.iter().enumerate();
        groups.filter(|(_, group)| are(group)).map(|(index, _)| index).collect()
    }

    /// Returns the instructions that are known: offset, length and state.
    pub(super) fn known(&self) -> impl Iterator<Item = (u32, u8, FrameState)> {
        let firsts = self.firsts.iter().enumerate();
        let firsts = firsts.filter_map(|(at, first)| Some((at as u32, (*first)?)));
        firsts.filter_map(|(at, first)| {
            Some((at, self.places[first as usize].len, self.right_state(first)?))
        })
    }

    /// Returns the places of an instruction, given the first.
    fn states(&self, first: u32) -> impl Iterator<Item = &KnownInstruction> {
        let next =
            |place: &&KnownInstruction| place.other.map(|index| &self.places[index as usize]);
        std::iter::successors(Some(&self.places[first as usize]), next)
    }

    /// Returns what all states agree on that are right.
    fn right_state(&self, first: u32) -> Option<FrameState> {
        let states = |is_right: fn(&Group) -> bool| {
            let group =
                move |place: &&KnownInstruction| is_right(&self.groups[place.group as usize]);
            self.states(first).filter(group).map(|place| Some(place.state))
        };
        let meet = |one: Option<FrameState>, other: Option<FrameState>| one?.meet(&other?);
        let proved = states(|group| group.is_proved && !group.is_bad).reduce(meet);
        // A function that never returns has no proof.
        let likely = || states(Group::is_likely).reduce(meet);
        proved.or_else(likely).flatten()
    }

    /// Returns the rules, ascending.
    pub(super) fn parts(&self) -> Vec<RuleRange> {
        let mut parts: Vec<RuleRange> = Vec::new();
        if self.work == 0 {
            // No code that a compiler has made takes so much.
            return parts;
        }
        for (at, len, state) in self.known() {
            let Some(rule) = state.rule() else { continue };
            let end = at + u32::from(len);
            match parts.last_mut() {
                Some((range, last)) if range.end == at && *last == rule => range.end = end,
                // Instructions overlap only where one of two paths is wrong.
                Some((range, _)) if range.end > at => range.end = at,
                _ => parts.push((at..end, rule)),
            }
        }
        parts.retain(|(range, _)| !range.is_empty());
        parts
    }
}

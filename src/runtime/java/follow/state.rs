//! What is known of the registers and the stack before an instruction.
//!
//! All is relative to the CFA, which by definition is the address above the return address. Where
//! two paths with different stack pointers meet, or the stack pointer was aligned, its distance to
//! the CFA is unknown. Then a second base begins there. Slots that both paths have at the same
//! distance from the stack pointer stay known: among them may be one in which the code saved an
//! address of the stack.

/// DWARF numbers of registers.
pub(super) const RAX: usize = 0;
pub(super) const RBX: usize = 3;
pub(super) const RBP: usize = 6;
pub(super) const RSP: usize = 7;
pub(super) const R13: usize = 13;
/// Number of registers.
pub(super) const REGISTERS: usize = 16;
/// Most slots that are remembered. Further ones are forgotten, which loses rules and makes none
/// wrong.
const SLOTS_MAX: usize = 12;
/// Largest distance from the CFA that is followed.
const DISTANCE_MAX: i32 = 1 << 24;

/// Returns a distance that is not too far.
fn near(at: i32) -> Option<i32> {
    (at.unsigned_abs() <= DISTANCE_MAX as u32).then_some(at)
}

/// What a register or a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrackedValue {
    Unknown,
    /// The CFA plus a number of bytes.
    Cfa(i32),
    /// The second base plus a number of bytes.
    Second(i32),
    CallerFp,
    ReturnAddress,
    /// The address of a handler, which the machine has returned.
    Handler,
    /// The stack pointer of the interpreter's caller.
    Sender,
    /// The method that the interpreter runs.
    Method,
}

impl TrackedValue {
    /// Returns the value, if it is not too far from its base.
    fn bounded(self) -> Self {
        match self {
            Self::Cfa(at) | Self::Second(at) if near(at).is_none() => Self::Unknown,
            _ => self,
        }
    }
}

/// From where a slot is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Base {
    Cfa,
    Second,
}

/// Eight bytes of the stack.
pub(super) type Slot = (Base, i32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    registers: [TrackedValue; REGISTERS],
    slots: [(Slot, TrackedValue); SLOTS_MAX],
    used: usize,
}

const NO_SLOT: (Slot, TrackedValue) = ((Base::Cfa, 0), TrackedValue::Unknown);

impl State {
    /// Nothing is known.
    const LOST: Self = Self {
        registers: [TrackedValue::Unknown; REGISTERS],
        slots: [NO_SLOT; SLOTS_MAX],
        used: 0,
    };

    /// The first instruction of a function: it was just called.
    pub(super) fn called() -> Self {
        let mut state = Self::LOST;
        state.registers[RSP] = TrackedValue::Cfa(-8);
        state.registers[RBP] = TrackedValue::CallerFp;
        state.store((Base::Cfa, -8), TrackedValue::ReturnAddress);
        state
    }

    /// A frame of this size, with the caller's frame pointer below the return address.
    pub(super) fn body(bytes: i32) -> Self {
        let mut state = Self::called();
        state.registers[RBP] = TrackedValue::Unknown;
        state.registers[RSP] = TrackedValue::Cfa(-bytes);
        if bytes >= 16 {
            state.store((Base::Cfa, -16), TrackedValue::CallerFp);
        }
        state
    }

    /// The entry of a method of the interpreter.
    pub(super) fn method_entry() -> Self {
        let mut state = Self::called();
        state.registers[R13] = TrackedValue::Sender;
        state.registers[RBX] = TrackedValue::Method;
        state
    }

    /// A complete frame of the interpreter.
    pub(super) fn interpreted() -> Self {
        let mut state = Self::framed();
        state.store((Base::Cfa, -24), TrackedValue::Sender);
        state.store((Base::Cfa, -40), TrackedValue::Method);
        state
    }

    /// Code to which a function jumps with its complete frame, to which the frame pointer points.
    pub(super) fn framed() -> Self {
        let mut state = Self::called();
        state.registers[RSP] = TrackedValue::Second(0);
        state.registers[RBP] = TrackedValue::Cfa(-16);
        state.store((Base::Cfa, -16), TrackedValue::CallerFp);
        state
    }

    /// Code to which a function jumps that has removed its frame and has put the return address
    /// into a register.
    pub(super) fn returned(register: usize) -> Self {
        let mut state = Self::LOST;
        state.registers[RSP] = TrackedValue::Cfa(0);
        state.registers[RBP] = TrackedValue::CallerFp;
        state.registers[register] = TrackedValue::ReturnAddress;
        state
    }

    /// Code that runs between two instructions of a function. The return address is nowhere yet.
    pub(super) fn polled() -> Self {
        let mut state = Self::LOST;
        state.registers[RSP] = TrackedValue::Cfa(0);
        state.registers[RBP] = TrackedValue::CallerFp;
        state
    }

    pub(super) fn register(&self, number: usize) -> TrackedValue {
        self.registers[number]
    }

    /// Returns the number of the first register that holds a value.
    pub(super) fn holder(&self, value: TrackedValue) -> Option<usize> {
        self.registers.iter().position(|it| *it == value)
    }

    pub(super) fn registers(&self) -> impl Iterator<Item = (usize, TrackedValue)> {
        self.registers.into_iter().enumerate()
    }

    /// Returns the slots with a known value.
    pub(super) fn slots(&self) -> &[(Slot, TrackedValue)] {
        &self.slots[..self.used]
    }

    pub(super) fn slot(&self, slot: Slot) -> TrackedValue {
        let found = self.slots().iter().find(|(it, _)| *it == slot);
        found.map_or(TrackedValue::Unknown, |(_, value)| *value)
    }

    /// Returns the first slot that holds a value.
    pub(super) fn slot_of(&self, value: TrackedValue) -> Option<Slot> {
        self.slots().iter().find(|(_, it)| *it == value).map(|(slot, _)| *slot)
    }

    /// Sets a register.
    pub(super) fn set(&mut self, number: usize, value: TrackedValue) {
        match number {
            RSP => self.set_sp(value),
            _ => self.registers[number] = value.bounded(),
        }
    }

    /// Sets the stack pointer. What is below it is no longer known. A value that is not known
    /// begins a second base, unless a register still has an address of the present one.
    pub(super) fn set_sp(&mut self, value: TrackedValue) {
        let value = match value.bounded() {
            TrackedValue::Cfa(_) | TrackedValue::Second(_) | TrackedValue::Sender => value,
            _ => TrackedValue::Unknown,
        };
        self.registers[RSP] = value;
        self.retain(|(base, offset), _| match (base, value) {
            (Base::Cfa, TrackedValue::Cfa(sp)) | (Base::Second, TrackedValue::Second(sp)) => {
                offset >= sp
            }
            _ => true,
        });
        if value == TrackedValue::Unknown {
            let is_used = self.registers.iter().any(|it| matches!(it, TrackedValue::Second(_)));
            if !is_used {
                self.retain(|(base, _), _| base == Base::Cfa);
                self.registers[RSP] = TrackedValue::Second(0);
            }
        }
    }

    /// Takes the stack pointer for the CFA, since it is that of the caller: the frame is gone. The
    /// return address is in a register, and code may push it anywhere below.
    fn leave_frame(&mut self) {
        self.retain(|_, _| false);
        self.registers = self.registers.map(|value| match value {
            TrackedValue::Cfa(_) | TrackedValue::Second(_) => TrackedValue::Unknown,
            TrackedValue::Sender => TrackedValue::Cfa(0),
            other => other,
        });
    }

    /// Moves the stack pointer by a number of bytes.
    pub(super) fn move_sp(&mut self, bytes: i32) {
        if self.registers[RSP] == TrackedValue::Sender {
            self.leave_frame();
        }
        self.set_sp(match self.registers[RSP] {
            TrackedValue::Cfa(at) => TrackedValue::Cfa(at.saturating_add(bytes)),
            TrackedValue::Second(at) => TrackedValue::Second(at.saturating_add(bytes)),
            _ => TrackedValue::Unknown,
        });
    }

    /// Returns the slot at a distance from a register, if that register points to the stack.
    pub(super) fn slot_at(&self, register: usize, distance: i32) -> Option<Slot> {
        match self.registers[register] {
            TrackedValue::Cfa(at) => Some((Base::Cfa, near(at.checked_add(distance)?)?)),
            TrackedValue::Second(at) => Some((Base::Second, near(at.checked_add(distance)?)?)),
            _ => None,
        }
    }

    /// Returns the distance of a slot from the stack pointer.
    pub(super) fn distance_from_sp(&self, (base, offset): Slot) -> Option<i32> {
        match (base, self.registers[RSP]) {
            (Base::Cfa, TrackedValue::Cfa(sp)) | (Base::Second, TrackedValue::Second(sp)) => {
                offset.checked_sub(sp)
            }
            _ => None,
        }
    }

    /// Pushes a value. A return address that is pushed where the CFA is not known is at a new CFA.
    pub(super) fn push(&mut self, value: TrackedValue) {
        self.move_sp(-8);
        let is_far = !matches!(self.registers[RSP], TrackedValue::Cfa(_));
        if value == TrackedValue::ReturnAddress && is_far {
            return self.begin_frame(-8);
        }
        if let Some(slot) = self.slot_at(RSP, 0) {
            self.store(slot, value);
        }
    }

    /// Pops a value.
    pub(super) fn pop(&mut self) -> TrackedValue {
        let value = self.slot_at(RSP, 0).map_or(TrackedValue::Unknown, |slot| self.slot(slot));
        self.move_sp(8);
        value
    }

    /// Defines the CFA by the stack pointer, which is at this distance from it.
    pub(super) fn begin_frame(&mut self, sp: i32) {
        for value in &mut self.registers {
            if matches!(value, TrackedValue::Cfa(_) | TrackedValue::Second(_)) {
                *value = TrackedValue::Unknown;
            }
        }
        self.retain(|_, _| false);
        self.registers[RSP] = TrackedValue::Cfa(sp);
        self.store((Base::Cfa, -8), TrackedValue::ReturnAddress);
    }

    /// Forgets the slots that a store of a number of bytes overwrites.
    pub(super) fn overwrite(&mut self, (base, start): Slot, bytes: i32) {
        let end = start.saturating_add(bytes);
        self.retain(|(other, offset), _| {
            base != other || offset >= end || offset.saturating_add(8) <= start
        });
    }

    /// Stores eight bytes. What replaces the return address is one, or that of a handler.
    pub(super) fn store(&mut self, slot: Slot, value: TrackedValue) {
        let is_return = slot == (Base::Cfa, -8) && self.slot(slot) == TrackedValue::ReturnAddress;
        let value = match value {
            TrackedValue::Handler => value,
            _ if is_return => TrackedValue::ReturnAddress,
            _ => value,
        };
        self.overwrite(slot, 8);
        if value == TrackedValue::Unknown || self.used == SLOTS_MAX {
            return;
        }
        let at = self.slots().partition_point(|(other, _)| *other < slot);
        self.slots.copy_within(at..self.used, at + 1);
        self.slots[at] = (slot, value);
        self.used += 1;
    }

    fn retain(&mut self, keep: impl Fn(Slot, TrackedValue) -> bool) {
        let mut kept = 0;
        for at in 0..self.used {
            let (slot, value) = self.slots[at];
            if keep(slot, value) {
                self.slots[kept] = (slot, value);
                kept += 1;
            }
        }
        self.slots[kept..self.used].fill(NO_SLOT);
        self.used = kept;
    }

    /// Returns the same state with the second base at the stack pointer, or at another register
    /// that has an address of it: two states are compared in this form.
    pub(super) fn normal(mut self) -> Self {
        let second = |value: &TrackedValue| match value {
            TrackedValue::Second(at) => Some(*at),
            _ => None,
        };
        let sp = second(&self.registers[RSP]);
        let Some(by) = sp.or_else(|| self.registers.iter().find_map(second)) else { return self };
        // All distances are near before, so none overflows.
        let moved = |value: TrackedValue| match value {
            TrackedValue::Second(at) => TrackedValue::Second(at - by).bounded(),
            _ => value,
        };
        self.registers = self.registers.map(moved);
        let used = self.used;
        for ((base, offset), value) in &mut self.slots[..used] {
            if *base == Base::Second {
                *offset -= by;
            }
            *value = moved(*value);
        }
        self.retain(|(_, offset), value| near(offset).is_some() && value != TrackedValue::Unknown);
        self
    }

    /// Returns the same state with the second base at the stack pointer. What had a place relative
    /// to the CFA and the stack pointer has one relative to the latter.
    fn relative_to_second(&self) -> Self {
        let TrackedValue::Cfa(sp) = self.registers[RSP] else { return self.normal() };
        let convert = |value: TrackedValue| match value {
            TrackedValue::Cfa(at) => TrackedValue::Second(at - sp).bounded(),
            _ => value,
        };
        let mut state = *self;
        state.registers = state.registers.map(convert);
        state.retain(|_, _| false);
        for ((base, offset), value) in self.slots() {
            if let (Base::Cfa, Some(offset)) = (*base, near(offset - sp)) {
                state.store((Base::Second, offset), *value);
            }
        }
        state
    }

    /// Returns what is known on both of two paths.
    pub(super) fn meet(&self, other: &Self) -> Self {
        let (one, other) = (self.normal(), other.normal());
        if one.registers[RSP] == other.registers[RSP] {
            return one.common(&other);
        }
        let mut both = one.relative_to_second().common(&other.relative_to_second());
        // What is known relative to the CFA stays so.
        let by_cfa = one.common(&other);
        for (value, known) in both.registers.iter_mut().zip(by_cfa.registers) {
            if known != TrackedValue::Unknown {
                *value = known;
            }
        }
        for (slot, value) in by_cfa.slots() {
            if slot.0 == Base::Cfa {
                both.store(*slot, *value);
            }
        }
        if both.registers[RSP] == TrackedValue::Unknown {
            both.set_sp(TrackedValue::Unknown);
        }
        both.normal()
    }

    fn common(&self, other: &Self) -> Self {
        let mut both = *self;
        for (value, other) in both.registers.iter_mut().zip(other.registers) {
            if *value != other {
                *value = TrackedValue::Unknown;
            }
        }
        both.retain(|slot, value| other.slot(slot) == value);
        both
    }

    /// Whether two states agree about the stack pointer.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        self.registers[RSP] == other.registers[RSP]
    }
}

//! A thread's forest of calls while it is read.
//!
//! # Invariants
//! - Before each block, the state so far must equal the checkpoint of the block, so a block means
//!   the same alone and in its place. If frames are lost in between, the forest gets a node for the
//!   loss.

use std::collections::{BTreeSet, HashMap};

use super::checkpoint::{BlockEntry, Checkpoint};
use super::loss::{self, Loss, Resumption};
use super::object::{SampleFields, TracePoint};
use super::sample::Context;
use super::tags::TextTags;
use super::thread::{CallRecord, Content, NO_NODE, NodeRecord, SampleRecord};
use super::{LocationId, MAX_DEPTH, NONE, SIDE, TextId, Thread, ThreadId, ThreadTrace};

/// Builds a [`ThreadTrace`].
#[derive(Debug, Default)]
pub(super) struct Forest {
    main: StreamBuilder,
    side: StreamBuilder,
    nodes: Vec<NodeRecord>,
    samples: Vec<SampleRecord>,
    paths: Vec<(u32, LocationId)>,
    path_ids: HashMap<(u32, LocationId), u32>,
    highest: Option<LocationId>,
    texts: BTreeSet<TextId>,
    exit: bool,
}

/// The state of one of the two streams.
#[derive(Debug, Default)]
struct StreamBuilder {
    state: Checkpoint,
    context: Context,
    tick_ns: u64,
    /// The time of the first sample in the block.
    first_ns: Option<u64>,
    /// The nodes of the open calls.
    nodes: Vec<u32>,
    /// The paths of the open calls that are up to date.
    paths: Vec<u32>,
    roots: Vec<u32>,
    /// The samples in order, each with the number of main samples before it.
    samples: Vec<(u64, u32)>,
    /// The number of losses before its last block.
    losses: u64,
    /// The last text that a sample waits on.
    last_text: Option<TextId>,
}

type Applied = Result<(), &'static str>;

impl Forest {
    /// Begins a block. `losses` is how often frames were lost before it. Returns what the stream
    /// lost.
    pub(super) fn begin(
        &mut self,
        entry: &BlockEntry,
        losses: u64,
    ) -> Result<Option<Resumption>, &'static str> {
        let highest = entry.begin.locations.iter().max().copied();
        self.highest = self.highest.max(highest);
        let builder = self.builder(entry.stream);
        let resumption = loss::resume(&builder.state, entry, builder.losses < losses)?;
        builder.losses = losses;
        if let Some(resumption) = &resumption {
            self.resume(entry, resumption)?;
        }
        let builder = self.builder(entry.stream);
        builder.context = Context::default();
        builder.tick_ns = entry.tick_ns;
        builder.first_ns = None;
        Ok(resumption)
    }

    /// Continues with a block after a loss.
    fn resume(&mut self, entry: &BlockEntry, resumption: &Resumption) -> Applied {
        let Resumption { survivors, from_ns, to_ns, samples } = *resumption;
        let stream = entry.stream;
        let ended = self.builder(stream).state.depth() - survivors;
        self.close(stream, ended, Closing { end_lost: true, ..Closing::default() })?;
        let samples = Some(samples);
        self.leaf(stream, Content::Lost { from_ns, to_ns, samples })?;
        let builder = self.builder(stream);
        let outer = survivors.checked_sub(1).map(|place| entry.begin.locations[place]);
        builder.state.clone_from(&entry.begin);
        builder.paths.clear();
        let mut call_site = outer;
        for location in &entry.begin.locations[survivors..] {
            let call = CallRecord { begin_lost: true, ..new_call(*location, call_site) };
            let node = self.attach(stream, Content::Call(call))?;
            self.builder(stream).nodes.push(node);
            call_site = Some(*location);
        }
        Ok(())
    }

    /// Ends a block.
    pub(super) fn end(&mut self, entry: &BlockEntry) -> Applied {
        let StreamBuilder { state, first_ns, .. } = self.builder(entry.stream);
        let samples = state.samples - entry.begin.samples;
        let times = (first_ns.unwrap_or(entry.begin.last_ns), state.last_ns);
        if samples != entry.samples || times != (entry.first_ns, entry.last_ns) {
            return Err("the samples of a block differ from its directory entry");
        }
        Ok(())
    }

    /// Adds the `bytes` of an object to the logical offset, before the object is applied.
    pub(super) fn advance(&mut self, stream: u32, bytes: usize) -> Applied {
        let logical = &mut self.builder(stream).state.logical;
        *logical = logical.checked_add(bytes as u64).ok_or("a logical offset overflows")?;
        Ok(())
    }

    /// Applies a trace point.
    pub(super) fn apply(&mut self, stream: u32, point: TracePoint) -> Applied {
        match point {
            TracePoint::Call { location } => self.call(stream, LocationId(location)),
            TracePoint::Footer { run, unfinished } => self.footer(stream, run as usize, unfinished),
            TracePoint::Site { location } => self.site(stream, 0, LocationId(location)),
            TracePoint::OuterSite { up, location } => {
                self.site(stream, up as usize, LocationId(location))
            }
            TracePoint::Sample(fields) => self.sample(stream, &fields),
            TracePoint::Gap { before, length } => {
                let (from_ns, to_ns) = gap(before, length, self.builder(stream).state.last_ns)?;
                self.builder(stream).context.gap(to_ns);
                self.leaf(stream, Content::Gap { from_ns, to_ns })
            }
            TracePoint::ThreadStart { time_ns } => {
                self.leaf(stream, Content::ThreadStart { time_ns })
            }
            TracePoint::ThreadExit { time_ns } => {
                self.exit = true;
                self.leaf(stream, Content::ThreadExit { time_ns })
            }
        }
    }

    /// Returns the largest location id in use.
    pub(super) fn highest_location(&self) -> Option<LocationId> {
        self.highest
    }

    /// Returns the texts that samples refer to.
    pub(super) fn texts(&self) -> &BTreeSet<TextId> {
        &self.texts
    }

    /// Returns the texts that the samples' tags refer to.
    pub(super) fn tag_texts(&self, tags: TextTags) -> impl Iterator<Item = TextId> {
        self.samples.iter().flat_map(move |record| tags.texts(&record.sample))
    }

    pub(super) fn sample_count(&self) -> u64 {
        self.samples.len() as u64
    }

    /// Returns the approximate memory in bytes.
    pub(super) fn memory(&self) -> u64 {
        let nodes = self.nodes.len() * size_of::<NodeRecord>();
        let samples = self.samples.len() * (size_of::<SampleRecord>() + size_of::<(u64, u32)>());
        // An entry in `paths` and one in `path_ids`.
        let paths = self.paths.len() * 40;
        // The approximate size of an entry of the set.
        let texts = self.texts.len() * 16;
        (size_of::<Self>() + nodes + samples + paths + texts) as u64
    }

    /// Returns the time of the last sample, or 0 without samples.
    pub(super) fn last_ns(&self) -> u64 {
        self.main.state.last_ns.max(self.side.state.last_ns)
    }

    /// Returns the number of losses before its last block.
    pub(super) fn losses(&self) -> u64 {
        self.main.losses.max(self.side.losses)
    }

    /// Returns whether the thread's end was seen.
    pub(super) fn exit(&self) -> bool {
        self.exit
    }

    /// Ends the open calls at the end of the file and merges the two streams.
    pub(super) fn finish(mut self, id: ThreadId, thread: Thread, end: ForestEnd) -> ThreadTrace {
        let ForestEnd { closed, losses, lost } = end;
        for stream in [0, SIDE] {
            let builder = self.builder(stream);
            let end_lost = builder.losses < losses;
            let open = builder.state.depth();
            // Cannot fail: no more calls are closed than are open.
            let _ =
                self.close(stream, open, Closing { unfinished: !(closed && end_lost), end_lost });
        }
        if let Some(Loss { from_ns, to_ns, samples, .. }) = lost {
            // Cannot fail: the limit is one less than the number of nodes that fit.
            let _ = self.leaf(0, Content::Lost { from_ns, to_ns, samples });
        }
        let order = self.merge();
        let Self { main, side, nodes, samples, paths, .. } = self;
        let roots = main.roots.into_iter().chain(side.roots).collect();
        ThreadTrace { id, thread, nodes, roots, samples, order, paths }
    }

    /// Returns the samples of both streams in the order of recording.
    fn merge(&self) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.samples.len());
        let mut side = self.side.samples.iter().peekable();
        for (number, place) in &self.main.samples {
            while let Some((_, earlier)) = side.next_if(|(before, _)| before <= number) {
                order.push(*earlier);
            }
            order.push(*place);
        }
        order.extend(side.map(|(_, place)| *place));
        order
    }

    fn builder(&mut self, stream: u32) -> &mut StreamBuilder {
        if stream & SIDE == 0 { &mut self.main } else { &mut self.side }
    }

    fn call(&mut self, stream: u32, location: LocationId) -> Applied {
        let call_site = self.builder(stream).state.locations.last().copied();
        let call = new_call(location, call_site);
        self.highest = self.highest.max(Some(location));
        let node = self.attach(stream, Content::Call(call))?;
        let builder = self.builder(stream);
        if builder.state.depth() == MAX_DEPTH {
            return Err("too many calls are open");
        }
        builder.nodes.push(node);
        builder.state.push(location, builder.state.logical);
        Ok(())
    }

    fn footer(&mut self, stream: u32, run: usize, unfinished: bool) -> Applied {
        self.close(stream, run, Closing { unfinished, end_lost: false })
    }

    /// Closes the `run` innermost calls.
    fn close(&mut self, stream: u32, run: usize, closing: Closing) -> Applied {
        let builder = self.builder(stream);
        let Some(depth) = builder.state.depth().checked_sub(run) else {
            return Err("a footer closes more calls than are open");
        };
        let now_ns = builder.state.last_ns;
        builder.state.truncate(depth);
        builder.paths.truncate(depth);
        let closed = builder.nodes.split_off(depth);
        let outer = builder.nodes.last().copied();
        for (place, node) in closed.iter().enumerate().rev() {
            let Content::Call(call) = &mut self.nodes[*node as usize].content else { continue };
            (call.unfinished, call.end_lost) = (closing.unfinished, closing.end_lost);
            if call.samples == 0 {
                // Its samples are lost: no sample shows this call or its outer calls at that time.
                (call.first_ns, call.last_ns) = (now_ns, now_ns);
                continue;
            }
            let (first_ns, last_ns, samples) = (call.first_ns, call.last_ns, call.samples);
            let parent = place.checked_sub(1).map(|place| closed[place]).or(outer);
            let Some(parent) = parent else { continue };
            let Content::Call(parent) = &mut self.nodes[parent as usize].content else { continue };
            parent.first_ns = parent.first_ns.min(first_ns);
            parent.last_ns = parent.last_ns.max(last_ns);
            parent.samples += samples;
        }
        Ok(())
    }

    fn site(&mut self, stream: u32, up: usize, location: LocationId) -> Applied {
        self.highest = self.highest.max(Some(location));
        let builder = self.builder(stream);
        let place = builder
            .state
            .depth()
            .checked_sub(up + 1)
            .ok_or("a trace point moves a call that is not open")?;
        builder.state.locations[place] = location;
        builder.paths.truncate(place);
        Ok(())
    }

    fn sample(&mut self, stream: u32, fields: &SampleFields) -> Applied {
        let path = self.path(stream);
        let builder = self.builder(stream);
        let outer = fields.outer.unwrap_or(0) as usize;
        let Some(frames) = builder.state.depth().checked_sub(outer) else {
            return Err("a sample leaves out more calls than are open");
        };
        let Some(sample) = builder.context.decode(fields, &builder.state, builder.tick_ns) else {
            return Err("the time of a sample is before that of the last one");
        };
        let text = sample.waits_on.filter(|text| builder.last_text != Some(*text));
        builder.last_text = text.or(builder.last_text);
        self.texts.extend(text);
        let builder = self.builder(stream);
        let time_ns = sample.time_ns;
        builder.state.last_ns = time_ns;
        builder.first_ns = builder.first_ns.or(Some(time_ns));
        let number = builder.state.samples;
        builder.state.samples = number.checked_add(1).ok_or("a count overflows")?;
        let skipped = fields.main_before.unwrap_or(0);
        let before = builder.state.main_before.checked_add(skipped).ok_or("a count overflows")?;
        builder.state.main_before = before;
        let place = self.samples.len() as u32;
        let before = if stream & SIDE == 0 { number } else { before };
        self.builder(stream).samples.push((before, place));
        self.samples.push(SampleRecord { sample, path, frames: frames as u32 });
        self.attach(stream, Content::Sample(place))?;
        let innermost = self.builder(stream).nodes.last().copied();
        if let Some(node) = innermost
            && let Content::Call(call) = &mut self.nodes[node as usize].content
        {
            call.first_ns = call.first_ns.min(time_ns);
            call.last_ns = call.last_ns.max(time_ns);
            call.samples += 1;
        }
        Ok(())
    }

    fn leaf(&mut self, stream: u32, content: Content) -> Applied {
        self.attach(stream, content).map(drop)
    }

    /// Adds a node to the innermost open call, or as a root.
    fn attach(&mut self, stream: u32, content: Content) -> Result<u32, &'static str> {
        let node = u32::try_from(self.nodes.len()).ok().filter(|node| *node != NO_NODE);
        let node = node.ok_or("a thread has more nodes than can be loaded at once")?;
        self.nodes.push(NodeRecord { content, next: NO_NODE });
        let Some(parent) = self.builder(stream).nodes.last().copied() else {
            self.builder(stream).roots.push(node);
            return Ok(node);
        };
        let mut elder = NO_NODE;
        if let Content::Call(call) = &mut self.nodes[parent as usize].content {
            elder = std::mem::replace(&mut call.last_child, node);
            if elder == NO_NODE {
                call.first_child = node;
            }
        }
        if let Some(elder) = self.nodes.get_mut(elder as usize) {
            elder.next = node;
        }
        Ok(node)
    }

    /// Returns the path of the open calls.
    fn path(&mut self, stream: u32) -> u32 {
        let Self { main, side, paths, path_ids, .. } = self;
        let builder = if stream & SIDE == 0 { main } else { side };
        while let Some(location) = builder.state.locations.get(builder.paths.len()) {
            let key = (builder.paths.last().copied().unwrap_or(NONE), *location);
            let path = *path_ids.entry(key).or_insert_with(|| {
                paths.push(key);
                paths.len() as u32 - 1
            });
            builder.paths.push(path);
        }
        builder.paths.last().copied().unwrap_or(NONE)
    }
}

/// The end of the file, as a thread needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForestEnd {
    /// Whether the recording was finished.
    pub(super) closed: bool,
    /// The number of times that frames were lost.
    pub(super) losses: u64,
    /// The loss at the thread's end.
    pub(super) lost: Option<Loss>,
}

/// The way in which calls end.
#[derive(Debug, Clone, Copy, Default)]
struct Closing {
    unfinished: bool,
    end_lost: bool,
}

/// Creates the record of a new call.
fn new_call(location: LocationId, call_site: Option<LocationId>) -> CallRecord {
    CallRecord {
        location,
        call_site,
        first_ns: u64::MAX,
        last_ns: 0,
        samples: 0,
        unfinished: false,
        begin_lost: false,
        end_lost: false,
        first_child: NO_NODE,
        last_child: NO_NODE,
    }
}

/// Returns the start and the end of a gap in a stream whose last sample is at `last_ns`.
pub(super) fn gap(before: i64, length: u64, last_ns: u64) -> Result<(u64, u64), &'static str> {
    let from_ns = last_ns.wrapping_add(before as u64);
    let to_ns = from_ns.checked_add(length).ok_or("the end of a gap overflows")?;
    Ok((from_ns, to_ns))
}

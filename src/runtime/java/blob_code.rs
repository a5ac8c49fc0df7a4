//! The code of a blob, and what is known of it before it is followed.

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::op;

use super::blob::{BlobKind, CodeBlob};
use super::code_layout::{PartKind, offset_in};
use super::follow::{Deoptimized, Followed, GeneratedCode, GeneratedKind, follow};
use super::machine::JavaMachine;
use super::thaw::{EnteredThreads, has_barriers};
use crate::runtime::pages::TargetPages;

/// The code of a blob that is to be followed.
pub(super) struct BlobCode<'a> {
    pub(super) machine: &'a JavaMachine,
    pub(super) pages: &'a TargetPages<'a>,
    pub(super) blob: &'a CodeBlob,
    pub(super) bytes: &'a [u8],
}

impl BlobCode<'_> {
    /// Returns the rules of the code.
    pub(super) fn follow(&self, entered: &EnteredThreads) -> Followed {
        match self.blob.kind {
            BlobKind::Interpreter => self.interpreter(),
            BlobKind::Compiled | BlobKind::NativeWrapper => self.method(),
            _ => {
                let kind = kind_of(self.blob, self.bytes);
                let entries = match kind {
                    GeneratedKind::Stubs => {
                        self.machine.entries.stub_entries(&self.blob.code, self.pages)
                    }
                    _ => Vec::new(),
                };
                let mut followed = follow(&GeneratedCode { entries: &entries, ..self.plain(kind) });
                if has_barriers(self.blob) {
                    entered.add_rules(&mut followed, self.blob, self.bytes);
                }
                followed
            }
        }
    }

    fn plain(&self, kind: GeneratedKind) -> GeneratedCode<'_> {
        GeneratedCode {
            kind,
            start: self.blob.code.start,
            bytes: self.bytes,
            frame_words: self.blob.frame_words,
            frame_complete: None,
            entries: &[],
            deoptimized: Deoptimized::default(),
        }
    }

    fn method(&self) -> Followed {
        let (blob, layout) = (self.blob, &self.machine.entries);
        let entries = layout.method_entries(blob.start, &blob.code, self.pages);
        let handlers = blob.compiled.iter().flat_map(|it| it.deopt_handlers).flatten();
        let handlers: Vec<u32> = handlers.filter_map(|it| offset_in(&blob.code, it)).collect();
        let original = layout.original_pc.count(self.pages, blob.start);
        let words = original.and_then(|bytes| i16::try_from(bytes / 8).ok());
        let has_frame = blob.frame_words > 0;
        let complete = blob.frame_complete.filter(|_| has_frame);
        follow(&GeneratedCode {
            frame_complete: complete.and_then(|it| offset_in(&blob.code, it)),
            entries: &entries,
            deoptimized: Deoptimized {
                handlers: &handlers,
                original_words: words.unwrap_or_default(),
            },
            ..self.plain(GeneratedKind::Method)
        })
    }

    fn interpreter(&self) -> Followed {
        let mut all = Followed { rows: vec![(0, Rule::BAD)], ..Followed::default() };
        let mut end = 0;
        for part in self.machine.entries.interpreter_parts(self.pages) {
            let code = &self.blob.code;
            let (Some(first), Some(last)) =
                (offset_in(code, part.code.start), offset_in(code, part.code.end - 1))
            else {
                continue;
            };
            let Some(bytes) = self.bytes.get(first as usize..=last as usize) else { continue };
            if first < end {
                continue;
            }
            let kind = match part.kind {
                PartKind::Entry => GeneratedKind::InterpreterEntry,
                PartKind::Deoptimized | PartKind::Other => GeneratedKind::Interpreter,
            };
            let followed = follow(&GeneratedCode {
                start: part.code.start,
                bytes,
                frame_words: 0,
                ..self.plain(kind)
            });
            all.instructions += followed.instructions;
            all.unknown += followed.unknown;
            all.is_cut |= followed.is_cut;
            all.rows.truncate(all.rows.partition_point(|(offset, _)| *offset < first));
            // Frames are found by the byte before the address to which they return. That may be
            // the first one of a part.
            let lead = followed.rows.first().filter(|_| first > end);
            let lead = lead.and_then(|(_, rule)| match part.kind {
                PartKind::Entry => None,
                PartKind::Deoptimized => Some(Rule::plain(op::INTERPRETED)),
                PartKind::Other => Some(*rule),
            });
            all.rows.extend(lead.map(|rule| (first - 1, rule)));
            all.rows.extend(followed.rows.iter().map(|(offset, rule)| (offset + first, *rule)));
            end = last + 1;
            all.rows.push((end, Rule::BAD));
        }
        all
    }
}

/// `push rbx`: what makes room for the address at which a poll was.
const PUSH_RBX: u8 = 0x53;

/// Returns the kind of a blob that is neither the interpreter nor a method.
fn kind_of(blob: &CodeBlob, bytes: &[u8]) -> GeneratedKind {
    // Names before 25 and since: `ExceptionBlob`, `C2 Runtime exception_blob`.
    let name = blob.name.to_ascii_lowercase().replace(['_', ' '], "");
    match blob.kind {
        BlobKind::Adapter => GeneratedKind::Adapter,
        BlobKind::TableStub => GeneratedKind::VirtualCall,
        _ if name.starts_with("stubroutines") => GeneratedKind::Stubs,
        _ if name.starts_with("methodhandlesadapters") => GeneratedKind::MethodHandles,
        // Called by the interpreter for the arguments of native methods. They have no frame.
        _ if name.contains("signaturehandlers") => GeneratedKind::VirtualCall,
        // Jumps to methods with what they check first, until 22.
        _ if name.contains("inlinecachebuffer") => GeneratedKind::VirtualCall,
        // C1 has functions since 25 whose names end like this: each has a frame.
        _ if name.contains("exceptionblob") && !name.starts_with("c1") => GeneratedKind::Exception,
        _ if name.contains("deoptimizationblob") || name.contains("uncommontrapblob") => {
            GeneratedKind::Deoptimization
        }
        // Polls at returns have a return address, and so has their function.
        _ if name.contains("safepoint") && bytes.first() == Some(&PUSH_RBX) => GeneratedKind::Poll,
        _ if name.contains("forwardexception") => GeneratedKind::FramedStub,
        _ => GeneratedKind::RuntimeStub,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_versions_have_kinds() {
        let kind = |name: &str| {
            let blob = CodeBlob {
                start: 0x1000,
                kind: BlobKind::Stub,
                name: name.to_owned(),
                code: 0x1040..0x1080,
                frame_words: 0,
                frame_complete: None,
                compiled: None,
            };
            kind_of(&blob, &[])
        };
        for name in ["ExceptionBlob", "C2 Runtime exception_blob"] {
            assert_eq!(kind(name), GeneratedKind::Exception, "{name}");
        }
        let of_c1 = ["C1 Runtime unwind_exception_blob", "C1 Runtime throw_div0_exception_blob"];
        for name in [&of_c1[..], &["unwind_exception Runtime1 stub"]].concat() {
            assert_eq!(kind(name), GeneratedKind::RuntimeStub, "{name}");
        }
        for name in ["forward_exception Runtime1 stub", "C1 Runtime forward_exception_blob"] {
            assert_eq!(kind(name), GeneratedKind::FramedStub, "{name}");
        }
        for name in ["DeoptimizationBlob", "UncommonTrapBlob"] {
            assert_eq!(kind(name), GeneratedKind::Deoptimization, "{name}");
        }
    }
}

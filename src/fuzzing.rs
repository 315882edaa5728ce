//! What a fuzzer calls, and the ordinary tests: for everything that is read of what others send, a function that
//! takes any bytes and panics where reading them breaks a promise.
//!
//! Each is beside the code that it is for, in a file `fuzzing.rs`, because what it calls is nobody else's. `fuzz/`
//! runs them under a fuzzer; the tests here run each on all of its corpus and on changes of that.
//!
//! Not here: what a message means.

/// Panics where a promise is broken.
pub type Target = fn(&[u8]);

/// All, by their names; `fuzz/corpus/` has a directory for each.
pub const TARGETS: [(&str, Target); 12] = [
    // Of the sandbox, to the gate.
    ("handshake", crate::server::fuzzing::handshake),
    ("stream", crate::server::fuzzing::stream),
    ("frames", crate::wire::fuzzing::frames),
    // Of whoever is at the wrapper's other end, and started it.
    ("answers", answers),
    ("errand", crate::wrapper::fuzzing::errand),
    // Of the network, to the gate and to the policy service.
    ("verdicts", crate::pb::fuzzing::verdicts),
    ("events", crate::policyd::audit::fuzzing::events),
    ("filters", crate::policyd::audit::fuzzing::filters),
    // Of owners and operators.
    ("redaction", crate::link::fuzzing::redaction),
    ("rules", crate::policyd::rules::fuzzing::rules),
    // Of a disk.
    ("journal", crate::journal::fuzzing::journal),
    ("tail", crate::journal::fuzzing::tail),
];

/// The target of a name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, target)| *target)
}

/// What a gate answers: the wrapper's part, and that of what the wrapper becomes.
fn answers(bytes: &[u8]) {
    for message in crate::wrapper::fuzzing::answers(bytes) {
        crate::stand_in::fuzzing::ending(&message);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::{Path, PathBuf};

    use super::*;

    /// Fewest files of a corpus that is worth its name.
    const FEWEST: usize = 8;

    /// Changed inputs of each target, by what one takes.
    fn changes_of(name: &str) -> usize {
        match name {
            // A thread each, files, a store.
            "rules" => 40,
            "journal" => 150,
            "events" | "filters" => 300,
            "stream" | "handshake" | "answers" | "tail" | "redaction" => 1_000,
            _ => 4_000,
        }
    }

    fn directory(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/corpus")
            .join(name)
    }

    /// The files of a corpus by their names, each with its content.
    fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
        let directory = directory(name);
        let mut files: Vec<_> = std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let content = std::fs::read(entry.path()).unwrap();
                (entry.file_name().into_string().unwrap(), content)
            })
            .collect();
        files.sort();
        files
    }

    fn run(name: &str, target: Target, from: &str, bytes: &[u8]) {
        assert!(
            catch_unwind(AssertUnwindSafe(|| target(bytes))).is_ok(),
            "the target {name} fails on {from}: {} bytes, \"{}\"",
            bytes.len(),
            bytes[..bytes.len().min(400)].escape_ascii()
        );
    }

    /// Numbers that are the same in each run: a SplitMix64 generator.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }

        fn below(&mut self, bound: usize) -> usize {
            usize::try_from(self.next() % (bound.max(1) as u64)).unwrap()
        }
    }

    /// Some bytes of one input changed, or taken from another.
    fn changed(numbers: &mut Numbers, one: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = one.to_vec();
        for _ in 0..=numbers.below(4) {
            let at = numbers.below(bytes.len() + 1);
            let end = bytes.len().min(at + numbers.below(16));
            match numbers.below(6) {
                0 if at < bytes.len() => bytes[at] = numbers.next().to_le_bytes()[0],
                1 if at < bytes.len() => bytes[at] ^= 1 << numbers.below(8),
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let part = bytes[at..end].repeat(1 + numbers.below(3));
                    bytes.splice(at..at, part);
                }
                4 => {
                    let from = numbers.below(other.len());
                    bytes.splice(at..end, other[from..].iter().copied().take(64));
                }
                _ => {
                    let edge = [0, 1, 0x7f, 0x80, 0xff][numbers.below(5)];
                    bytes.splice(at..end, [edge]);
                }
            }
        }
        bytes
    }

    fn replay(name: &str) {
        let target = target(name).unwrap_or_else(|| panic!("there is no target {name}"));
        let corpus = corpus(name);
        assert!(
            corpus.len() >= FEWEST,
            "fuzz/corpus/{name} has {} files",
            corpus.len()
        );
        for (file, content) in &corpus {
            run(name, target, file, content);
        }
        let mut numbers = Numbers(0);
        for _ in 0..changes_of(name) {
            let (file, one) = &corpus[numbers.below(corpus.len())];
            let (_, other) = &corpus[numbers.below(corpus.len())];
            let bytes = changed(&mut numbers, one, other);
            run(name, target, &format!("{file}, changed"), &bytes);
        }
        run(name, target, "nothing", &[]);
    }

    /// A test for each, so that they run side by side.
    macro_rules! replayed {
        ($($name:ident)*) => {
            $(#[test]
            fn $name() {
                replay(stringify!($name));
            })*

            #[test]
            fn each_target_is_replayed() {
                let replayed = [$(stringify!($name)),*];
                assert_eq!(replayed.as_slice(), TARGETS.map(|(name, _)| name));
                let mut directories: Vec<_> = std::fs::read_dir(directory(""))
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect();
                directories.sort_unstable();
                let mut named = replayed.to_vec();
                named.sort_unstable();
                assert_eq!(directories, named);
            }
        };
    }

    replayed! {
        handshake stream frames answers errand verdicts events filters redaction rules journal tail
    }
}

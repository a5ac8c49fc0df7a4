//! Wrong command lines: the corrected line in the message can be pasted and does what was meant.

use crate::common::traceprof;

/// Returns the message for a command line.
fn message(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let output = traceprof(&words).output().expect("traceprof");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}: {text}");
    text
}

/// Returns the command line that the message offers.
fn suggestion(line: &str) -> Option<String> {
    let text = message(line);
    let (_, rest) = text.split_once("`traceprof record ")?;
    rest.split_once('`').map(|(suggestion, _)| suggestion.to_owned())
}

#[test]
fn a_line_to_be_pasted_is_one_that_is_accepted() {
    let check = |line: &str, expected: Option<&str>| {
        assert_eq!(suggestion(line).as_deref(), expected, "{line}");
    };
    check("record -F 99 -g -p 12", Some("-F 99 -p 12"));
    check("record -g -p 12 sleep 10", Some("-p 12 -- sleep 10"));
    check("record -g -P redis sleep 10", Some("-P redis -- sleep 10"));
    check("record -g ./app", Some("-- ./app"));
    check("record -F 99 -g ./app -g -v", Some("-F 99 -- ./app -g -v"));
    // Two targets, a refused name, an unknown event, two conflicting options, no target.
    check("record -g -p 12 ls", None);
    check("record -g -p 12 -o a.svg", None);
    check("record -g -p 12 -e instructions", None);
    check("record -g -p 12 --ring 1m --rotate 1m", None);
    check("record -g", None);
}

#[test]
fn tips_lead_to_no_option_that_is_refused_and_to_no_program_of_that_name() {
    for option in ["--time", "--formats", "--cpus", "--thread"] {
        for line in [format!("record {option} 5 -p 12"), format!("record -p 12 {option}")] {
            let text = message(&line);
            assert!(text.contains(&format!("unexpected argument '{option}'")), "{text}");
            for tip in ["--timeout", "'--format'", "'--cpu'", "'--threads'", "as a value"] {
                assert!(!text.contains(tip), "{line}: {text}");
            }
        }
    }
    assert!(message("record -p 12 --durration 3").contains("'--duration'"));
    assert!(message("--formatt record").contains("unexpected argument"));
}

#[test]
fn options_of_a_program_are_distinguished_from_misspelt_own_ones() {
    let line = "record -F 99 ./a.out --flag";
    assert_eq!(suggestion(line).as_deref(), Some("-F 99 -- ./a.out --flag"));
    let text = message(line);
    assert!(text.contains("comes after --") && text.contains("--name ./a.out"), "{text}");
    let line = "record redis --durration 3";
    let text = message(line);
    assert!(text.contains("'--durration', a similar one is '--duration'"), "{text}");
    assert!(text.contains("--name redis"), "{text}");
    assert_eq!(suggestion(line), None, "it would start another program: {text}");
    // Options before the program are our own.
    let text = message("record --durration 3 redis");
    assert!(text.contains("'--duration'") && !text.contains("after --"), "{text}");
    assert_eq!(suggestion("record -p 12 ls --flag"), None);
}

#[test]
fn a_size_or_a_time_has_the_value_of_its_unit() {
    for size in ["100mb", "100mib"] {
        let text = message(&format!("record -p 12 --rotate {size} --ring 1m"));
        assert!(text.contains("--ring has parts of its own"), "it is a size: {text}");
    }
    let text = message("record -p 12 --rotate 100mbit");
    assert!(text.contains("`mbit`: use K, M, G or T for a size, s, m or h for a time"), "{text}");
}

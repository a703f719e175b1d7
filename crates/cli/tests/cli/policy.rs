//! Draft policies: no setting changes the answer.

use serde_json::Value;

use crate::support::{self, arg, refrain, repository};

fn run(more: &[&str]) -> support::Ran {
    let notes = repository("fixtures/notes");
    let mut args = vec!["ask", "--context", arg(&notes)];
    args.extend(["--max-tokens", "24"]);
    args.extend(more);
    args.push("Who comes along on the trip to Aniarda?");
    refrain(&args)
}

fn stats(more: &[&str]) -> Value {
    let text = run(&[&["--json"], more].concat()).done();
    let mut report: Value = serde_json::from_str(&text).unwrap();
    report["stats"] = report["stats"][0].take();
    report
}

#[test]
fn policies_leave_the_answer_as_it_is_and_say_what_they_did() {
    let expected = stats(&["--draft", "off"])["text"].clone();
    assert!(!expected.as_str().unwrap().is_empty());
    for (more, reason) in [
        ("rows=4", None),
        ("floor=1,floor-window=1,floor-pause=2", None),
        ("tokens-min=25", Some("short_output")),
        ("memory-min=9000000GiB", Some("low_memory")),
        ("heat=fair", None),
        ("heat=critical", Some("heat")),
        ("pressure=warning", None),
        ("pressure=critical", Some("memory_pressure")),
    ] {
        let json = stats(&["--drafting", more]);
        assert_eq!(json["text"], expected, "{more:?}");
        let (off, steps) = (&json["stats"]["drafting_off"], &json["stats"]["steps"]);
        if let Some(reason) = reason {
            assert_eq!(off[reason], *steps, "{more:?}: {off}");
        }
    }
    let fixed = stats(&["--drafting", "rows=3"]);
    assert_eq!(fixed["stats"]["policy"]["rows_allowed"].as_array().unwrap().len(), 4, "{fixed}");
    let hot = stats(&["--drafting", "temp-max=0.5", "--temp", "0.9", "--seed", "3"]);
    assert_eq!(hot["stats"]["drafting_off"]["high_temperature"], hot["stats"]["steps"]);
    assert_eq!(hot["text"], stats(&["--draft", "off", "--temp", "0.9", "--seed", "3"])["text"]);
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    for (more, name) in [
        ("rows=0", "policy.rows"),
        ("rows=64", "policy.rows"),
        ("rows=some", "rows: `some`"),
        ("floor=2", "rate_min"),
        ("temp-max=nan", "temperature_max"),
        ("speed=2", "no key `speed`"),
    ] {
        let refused = run(&["--drafting", more]).refused(2);
        assert!(refused.contains(name), "{more:?}: {refused}");
    }
}

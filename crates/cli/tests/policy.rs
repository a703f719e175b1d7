//! Draft policies: no option changes the answer.

mod support;

use serde_json::Value;
use support::{arg, refrain, repository};

fn run(more: &[&str]) -> support::Ran {
    let notes = repository("fixtures/notes");
    let mut args = vec!["run", "--context", arg(&notes), "--task", "answer", "--no-history"];
    args.extend(["--max-tokens", "24"]);
    args.extend(more);
    args.push("Who comes along on the trip to Aniarda?");
    refrain(&args)
}

fn stats(more: &[&str]) -> Value {
    let text = run(&[&["--stats", "json"], more].concat()).done();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn policies_leave_the_answer_as_it_is_and_say_what_they_did() {
    let expected = stats(&["--draft", "off"])["text"].clone();
    assert!(!expected.as_str().unwrap().is_empty());
    for (more, reason) in [
        (&["--draft-rows", "4"][..], None),
        (&["--acceptance-floor", "1", "--floor-window", "1", "--floor-pause", "2"], None),
        (&["--draft-min-tokens", "25"], Some("short_output")),
        (&["--draft-min-memory", "9000000GiB"], Some("low_memory")),
        (&["--heat", "fair"], None),
        (&["--heat", "critical"], Some("heat")),
        (&["--memory-pressure", "warning"], None),
        (&["--memory-pressure", "critical"], Some("memory_pressure")),
    ] {
        let json = stats(more);
        assert_eq!(json["text"], expected, "{more:?}");
        let (off, steps) = (&json["stats"]["drafting_off"], &json["stats"]["steps"]);
        if let Some(reason) = reason {
            assert_eq!(off[reason], *steps, "{more:?}: {off}");
        }
    }
    let fixed = stats(&["--draft-rows", "3"]);
    assert_eq!(fixed["stats"]["policy"]["rows_allowed"].as_array().unwrap().len(), 4, "{fixed}");
    let hot = stats(&["--draft-max-temp", "0.5", "--temp", "0.9", "--seed", "3"]);
    assert_eq!(hot["stats"]["drafting_off"]["high_temperature"], hot["stats"]["steps"]);
    assert_eq!(hot["text"], stats(&["--draft", "off", "--temp", "0.9", "--seed", "3"])["text"]);
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    for (more, name) in [
        (&["--draft-rows", "0"][..], "policy.rows"),
        (&["--draft-rows", "64"], "policy.rows"),
        (&["--draft-rows", "some"], "--draft-rows"),
        (&["--acceptance-floor", "2"], "rate_min"),
        (&["--draft-max-temp", "nan"], "temperature_max"),
    ] {
        let refused = run(more).refused(2);
        assert!(refused.contains(name), "{more:?}: {refused}");
    }
}

//! Draft policies: no option changes the answer, except lossy acceptance, which the statistics report.

mod support;

use serde_json::Value;
use support::{arg, refrain, repository};

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
        (&["--draft-rows", "4"][..], None),
        (&["--draft-rows", "pid", "--pid-acceptance", "0.5", "--pid-gains", "6,0.5,1"], None),
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
        assert!(json["stats"]["lossy"].is_null(), "{more:?}");
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
fn what_is_lossy_says_so() {
    let text = run(&["--lossy-top-p", "0.9"]);
    assert!(text.stderr.contains("LOSSY"), "{}", text.stderr);
    let json = stats(&["--lossy-top-p", "0.9"]);
    let top_p = json["stats"]["lossy"]["top_p"].as_f64().unwrap();
    assert!((top_p - 0.9).abs() < 1e-6 && json["stats"]["lossy"]["replaced"].is_u64());
    assert_eq!(stats(&["--lossy-top-p", "0.9"])["text"], json["text"], "the same again");
    assert!(!run(&["--draft-rows", "4"]).stderr.contains("LOSSY"));
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    for (more, name) in [
        (&["--draft-rows", "0"][..], "policy.rows"),
        (&["--draft-rows", "64"], "policy.rows"),
        (&["--draft-rows", "some"], "--draft-rows"),
        (&["--draft-rows", "pid", "--pid-acceptance", "2"], "set_point"),
        (&["--pid-gains", "1,2"], "--pid-gains"),
        (&["--acceptance-floor", "2"], "rate_min"),
        (&["--draft-max-temp", "nan"], "temperature_max"),
        (&["--lossy-top-p", "0"], "lossy_top_p"),
        (&["--lossy-top-p", "1.5"], "lossy_top_p"),
    ] {
        let refused = run(more).refused(2);
        assert!(refused.contains(name), "{more:?}: {refused}");
    }
}

//! A stored profile: read, used for costs, written and read again.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use refrain::device::MachineProfile;
use refrain::internals::draft::VERIFY_ROWS_MAX;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzz.profile.json");
    let Ok(profile) = MachineProfile::parse(bytes, path) else { return };
    let last = profile.verify().last().expect("a profile has entries").context;
    for context in [0, last / 2, last, last.saturating_add(1), usize::MAX] {
        for projection_rows in [1, 8, VERIFY_ROWS_MAX] {
            let costs = profile.costs(context, projection_rows);
            let us = [1, 2, 7, VERIFY_ROWS_MAX, VERIFY_ROWS_MAX + 1].map(|rows| costs.verify_us(rows, 1));
            assert!(us.iter().all(|us| us.is_finite() && *us > 0.0), "{us:?}");
            assert!(us.is_sorted(), "{us:?}");
        }
    }
    let text = serde_json::to_vec(&profile).unwrap();
    assert_eq!(MachineProfile::parse(&text, path).unwrap(), profile);
});

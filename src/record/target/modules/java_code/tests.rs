//! A machine that has other heaps all the time, and code that has no room.

use super::*;

#[test]
fn a_machine_may_not_have_other_heaps_all_the_time() {
    let mut code = FollowedJavaCode::default();
    let began = Instant::now();
    let at = |ms: u64| began + Duration::from_millis(ms);
    let times = (0..100_000).filter(|tick| code.may_have_others(at(tick * 10))).count();
    // Eight at once, then after 2, 4, 8 ... seconds, and each minute at last.
    assert!((16..30).contains(&times), "{times}");
}

#[test]
fn messages_are_given_once() {
    let (mut code, mut notices) = (FollowedJavaCode::default(), Vec::new());
    for message in [Some(FULL), None, Some(FULL), Some(MANY), Some(FULL)] {
        code.note(message, &mut notices);
    }
    assert_eq!(notices, [FULL, MANY]);
}

#[test]
fn code_without_room_is_tried_again_later() {
    let (mut left, mut scan) = (LeftOut::default(), CodeScan::default());
    let began = Instant::now();
    (1..=150).for_each(|start| left.add(start * 128));
    assert!(left.has_any());
    left.retry(began, &mut scan);
    assert_eq!(left.count(), 150, "nothing is free at once");
    left.retry(began + Duration::from_secs(1), &mut scan);
    assert_eq!(left.count(), 150);
    for (seconds, rest) in [(3, 86), (6, 22), (9, 0)] {
        left.retry(began + Duration::from_secs(seconds), &mut scan);
        assert_eq!(left.count(), rest);
    }
}

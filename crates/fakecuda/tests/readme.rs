//! The README lists the functions that there are.

use std::collections::BTreeSet;

/// The functions named between two headings.
fn listed(from: &str, to: &str) -> Vec<String> {
    let text = include_str!("../README.md");
    let (_, text) = text.split_once(from).expect("the first heading");
    let text = text.split_once(to).map_or(text, |(section, _)| section);
    let names = text.split('`').filter(|word| word.starts_with("cu") && !word.contains(' '));
    names.map(str::to_string).collect()
}

fn compare(mut listed: Vec<String>, there: &[&str]) {
    let set: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    let there: BTreeSet<&str> = there.iter().copied().collect();
    assert_eq!(set, there);
    listed.sort();
    listed.dedup();
    assert_eq!(listed.len(), there.len());
}

#[test]
fn what_is_covered() {
    compare(listed("\n## Covered\n", "\n## Not covered\n"), fakecuda::covered());
}

#[test]
fn what_is_not() {
    compare(listed("\n## Not covered\n", "\n## nothing follows"), fakecuda::refused());
}

#[test]
fn nothing_is_both() {
    let covered: BTreeSet<_> = fakecuda::covered().iter().collect();
    assert!(fakecuda::refused().iter().all(|name| !covered.contains(name)));
    assert!(covered.len() > 100);
}

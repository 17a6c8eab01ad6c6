//! What a flow does and guarantees.

use super::{Page, begins, reads};
use crate::manifest::flow::{Flow, OnMissing, Step};

pub(super) fn page(flow: &Flow) -> Page {
    let steps = match flow.steps.len() {
        0 => "passes them on unchanged.".to_owned(),
        1 => "takes each message through one step:".to_owned(),
        steps => format!("takes each message through {steps} steps:"),
    };
    let mut does = vec![format!("{} and {steps}", reads(&flow.from))];
    does.extend(flow.steps.iter().enumerate().map(|(at, step)| format!("{}. {}", at + 1, describe(step))));
    does.push(match &flow.to {
        Some(to) => format!("What comes through is stored under {to}."),
        None => "What no route took ends here, and is counted.".to_owned(),
    });
    let dedupe = flow.steps.iter().find_map(|step| match step {
        Step::Dedupe(dedupe) => Some(dedupe),
        _ => None,
    });
    let again = "What was in hand is worked on again, and comes out once";
    Page {
        does,
        delivery: "Each message has its effect once on the bus: all it becomes and its acknowledgement are one commit."
            .to_owned(),
        order: match dedupe {
            Some(_) => {
                "Kept. One batch at a time, so that the first message of a key is the one that passes.".to_owned()
            }
            None => "Kept, as long as no message has to be handed out twice.".to_owned(),
        },
        kill: format!("Nothing is lost or doubled. {again}."),
        machine: format!("The same: what was acknowledged is on disk. {again}."),
        away: "Nothing changes here: what it stores waits on disk for those who read it.".to_owned(),
        full:
            "It holds what it has worked out, reads nothing new, and goes on when there is room. A tenth of the bus is \
               kept for this work, so a full bus can be worked off. When dead letters are full it pauses as well."
                .to_owned(),
        restart: match dedupe {
            Some(dedupe) => format!(
                "{} Keys of dedupe are remembered for {} across restarts; a message handed out again passes its own key.",
                begins(flow.start_from),
                dedupe.within
            ),
            None => begins(flow.start_from),
        },
        poison:
            "A step that fails is sure to fail again: the message becomes a dead letter at once, its bytes unchanged, \
                 with the place in the manifest. Nothing of it comes out, and the others go on."
                .to_owned(),
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::Validate(step) => {
            format!("validate: what does not match the schema {} becomes a dead letter", step.schema)
        }
        Step::Filter(condition) => format!("filter: goes on only when {}", one_line(&condition.0)),
        Step::Map(program) => format!("map: {}", one_line(&program.0)),
        Step::Split(elements) => format!("split: one message for each element of {}", one_line(&elements.0)),
        Step::Lookup(step) => {
            let missing = match step.on_missing {
                OnMissing::Null => "without a row it is null",
                OnMissing::Fail => "without a row the message becomes a dead letter",
                OnMissing::Drop => "without a row the message ends here",
            };
            format!(
                "lookup: {} is the row of the table {} for {}; {missing}",
                step.into,
                step.table,
                one_line(&step.key.0)
            )
        }
        Step::Dedupe(step) => {
            format!("dedupe: the first of each {} passes, the others end for {}", one_line(&step.key.0), step.within)
        }
        Step::Route(arms) => {
            let arms: Vec<String> = arms
                .iter()
                .map(|arm| match &arm.when {
                    Some(when) => format!("to {} when {}", arm.to, one_line(&when.0)),
                    None => format!("all others to {}", arm.to),
                })
                .collect();
            format!("route: {}", arms.join("; "))
        }
    }
}

/// The first line of a program, and that there is more.
fn one_line(source: &str) -> String {
    let mut lines = source.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    match lines.count() {
        0 => format!("`{first}`"),
        1 => format!("`{first}` and one more line"),
        more => format!("`{first}` and {more} more lines"),
    }
}

//! Subjects across manifests: who writes and reads them, and flows that feed themselves.
//!
//! Subjects and patterns are taken from the trees, so a manifest with errors elsewhere still counts as a writer or
//! reader and does not make its neighbours look wrong.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::Check;
use super::draft::Draft;
use crate::manifest::problem::{Code, Place, Problem, Region};
use crate::manifest::reader::tree::{Node, Value};
use crate::manifest::value::{Pattern, Subject};

/// A subject or pattern at its place.
#[derive(Debug)]
pub(super) struct Use {
    pub draft: usize,
    pub subject: String,
    pub region: Region,
    /// Where it stands below `spec`: `to`, `steps.2.route.0.to`.
    pub path: String,
}

/// Patterns by their tokens; finds all that match a subject without looking at the others.
#[derive(Debug, Default)]
pub(super) struct Matcher {
    next: HashMap<String, Matcher>,
    /// Values of patterns that end here, and of those that end here with `>`.
    here: Vec<usize>,
    rest: Vec<usize>,
}

impl Matcher {
    pub(super) fn insert(&mut self, pattern: &str, value: usize) {
        let mut at = self;
        for token in pattern.split('.') {
            if token == ">" {
                return at.rest.push(value);
            }
            at = at.next.entry(token.to_owned()).or_default();
        }
        at.here.push(value);
    }

    /// The values of all patterns that match, in ascending order.
    pub(super) fn matches(&self, subject: &str) -> Vec<usize> {
        let tokens: Vec<&str> = subject.split('.').collect();
        let mut found = Vec::new();
        self.walk(&tokens, &mut found);
        found.sort_unstable();
        found.dedup();
        found
    }

    fn walk(&self, tokens: &[&str], found: &mut Vec<usize>) {
        let Some((token, rest)) = tokens.split_first() else { return found.extend(&self.here) };
        found.extend(&self.rest);
        for key in [*token, "*"] {
            if let Some(next) = self.next.get(key) {
                next.walk(rest, found);
            }
        }
    }
}

impl Check<'_> {
    pub(super) fn writes(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for (at, draft) in self.drafts.iter().enumerate() {
            let Some(spec) = draft.find("spec").filter(|_| matches!(draft.kind, Some("HttpIn" | "Source" | "Flow")))
            else {
                continue;
            };
            let mut take = |node: Option<&Node>, path: String| {
                let Some((text, region)) = node.and_then(|n| n.text().map(|text| (text, n.region))) else { return };
                if Subject::parse(text).is_ok() {
                    uses.push(Use { draft: at, subject: text.to_owned(), region, path });
                }
            };
            take(spec.get("to"), "to".to_owned());
            for (number, step) in spec.get("steps").map_or(&[][..], Node::items).iter().enumerate() {
                for (arm, node) in step.get("route").map_or(&[][..], Node::items).iter().enumerate() {
                    take(node.get("to"), format!("steps.{number}.route.{arm}.to"));
                }
            }
        }
        uses
    }

    pub(super) fn reads(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for (at, draft) in self.drafts.iter().enumerate() {
            let Some(from) = draft.find("spec.from").filter(|_| matches!(draft.kind, Some("Flow" | "Sink"))) else {
                continue;
            };
            let nodes = match &from.value {
                Value::List(items) => items.iter().enumerate().map(|(n, item)| (format!("from.{n}"), item)).collect(),
                _ => vec![("from".to_owned(), from)],
            };
            for (path, node) in nodes {
                let Some(text) = node.text().filter(|text| Pattern::parse(text).is_ok()) else { continue };
                uses.push(Use { draft: at, subject: text.to_owned(), region: node.region, path });
            }
        }
        uses
    }

    pub(super) fn check_subjects(&mut self) {
        let (writes, reads) = (self.writes(), self.reads());
        let mut readers = Matcher::default();
        reads.iter().enumerate().for_each(|(at, read)| readers.insert(&read.subject, at));
        // Per subject, not per use: many units may write one subject.
        let mut read_by: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for write in &writes {
            read_by.entry(&write.subject).or_insert_with(|| readers.matches(&write.subject));
        }
        let mut fed = vec![false; reads.len()];
        read_by.values().flatten().for_each(|read| fed[*read] = true);

        let mut found = Vec::new();
        for write in writes.iter().filter(|write| read_by[write.subject.as_str()].is_empty()) {
            let place = self.drafts[write.draft].place(write.region);
            let problem = Problem::warning(Code::NobodyReads, place, format!("nobody reads `{}`", write.subject));
            let known = reads.iter().map(|read| read.subject.as_str()).filter(|subject| !subject.contains(['*', '>']));
            found.push((write.draft, suggest(problem, &write.subject, known, writes.len())));
        }
        for (read, _) in reads.iter().zip(&fed).filter(|(_, fed)| !**fed) {
            let place = self.drafts[read.draft].place(read.region);
            let problem = Problem::warning(Code::NobodyWrites, place, format!("nobody writes `{}`", read.subject));
            let known = writes.iter().map(|write| write.subject.as_str());
            found.push((read.draft, suggest(problem, &read.subject, known, reads.len())));
        }
        self.cycles(&writes, &reads, &read_by, &mut found);
        self.report_all(found);
    }

    fn cycles(
        &mut self,
        writes: &[Use],
        reads: &[Use],
        read_by: &BTreeMap<&str, Vec<usize>>,
        found: &mut Vec<(usize, Problem)>,
    ) {
        // Nodes are drafts, then subjects: a flow leads to what it writes, a subject to the flows that read it.
        let is_flow = |draft: usize| self.drafts[draft].kind == Some("Flow");
        let drafts = self.drafts.len();
        let number: HashMap<&str, usize> = read_by.keys().enumerate().map(|(at, s)| (*s, drafts + at)).collect();
        let mut graph: Vec<Vec<(usize, usize)>> = vec![Vec::new(); drafts + number.len()];
        for (at, write) in writes.iter().enumerate().filter(|(_, write)| is_flow(write.draft)) {
            graph[write.draft].push((number[write.subject.as_str()], at));
        }
        for (subject, readers) in read_by {
            let flows = readers.iter().filter(|read| is_flow(reads[**read].draft));
            graph[number[subject]] = flows.map(|read| (reads[*read].draft, *read)).collect();
        }
        for component in components(&graph).into_iter().filter(|component| component.len() > 1) {
            let flows: Vec<usize> = component.iter().copied().filter(|node| *node < drafts).collect();
            let Some(first) = flows.iter().min().copied() else { continue };
            let round = round(&graph, &component, first);
            found.push((first, self.cycle(&round, drafts, writes, reads, flows.len())));
            flows.iter().for_each(|draft| self.drafts[*draft].leave_out("it is part of a cycle of flows"));
        }
    }

    fn cycle(&self, round: &[(usize, usize)], drafts: usize, writes: &[Use], reads: &[Use], flows: usize) -> Problem {
        let mut path = Vec::new();
        let mut labels: Vec<(Place, String)> = Vec::new();
        for (node, edge) in round {
            let a_flow = *node < drafts;
            let used = if a_flow { &writes[*edge] } else { &reads[*edge] };
            let draft: &Draft = &self.drafts[used.draft];
            if a_flow {
                path.push(draft.name().map_or_else(String::new, |(name, _)| name.to_owned()));
            }
            let verb = if a_flow { "writes" } else { "reads" };
            labels.push((draft.place(used.region), format!("{} {verb} it", draft.title())));
        }
        path.extend(path.first().cloned());
        let in_path = path.len() - 1;
        let mut message = format!("messages would go round: {}", path.join(" → "));
        if flows > in_path {
            message.push_str(&format!(" (and {} more)", flows - in_path));
        }
        let mut labels = labels.into_iter();
        let (place, text) = match labels.next() {
            Some(first) => first,
            None => (Place::whole(&self.drafts[0].source), String::new()),
        };
        let problem = Problem::error(Code::Cycle, place, message).label(text);
        let problem = labels.fold(problem, |problem, (place, text)| problem.and(place, text));
        problem.help("let one of the flows write another subject; for repeated attempts there is `retry`")
    }
}

/// Suggestions compare with every other subject, so they are left out where there are very many.
fn suggest<'s>(problem: Problem, subject: &str, known: impl Iterator<Item = &'s str>, count: usize) -> Problem {
    const COMPARED_MAX: usize = 500;
    let close = match count <= COMPARED_MAX {
        true => crate::manifest::problem::did_you_mean(subject, known.filter(|other| *other != subject)),
        false => None,
    };
    match close {
        Some(meant) => problem.help(format!("did you mean `{meant}`?")),
        None => problem,
    }
}

/// Strongly connected components (Tarjan), without recursion: a chain of flows may be long.
fn components(graph: &[Vec<(usize, usize)>]) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let mut order = vec![UNSEEN; graph.len()];
    let mut low = vec![0; graph.len()];
    let mut on_stack = vec![false; graph.len()];
    let (mut stack, mut work, mut result) = (Vec::new(), Vec::new(), Vec::new());
    let mut seen = 0;
    for start in 0..graph.len() {
        if order[start] == UNSEEN {
            work.push((start, 0));
        }
        while let Some((node, edge)) = work.pop() {
            if edge == 0 {
                (order[node], low[node]) = (seen, seen);
                seen += 1;
                stack.push(node);
                on_stack[node] = true;
            }
            if let Some((next, _)) = graph[node].get(edge).copied() {
                work.push((node, edge + 1));
                if order[next] == UNSEEN {
                    work.push((next, 0));
                } else if on_stack[next] {
                    low[node] = low[node].min(order[next]);
                }
                continue;
            }
            if let Some((parent, _)) = work.last() {
                low[*parent] = low[*parent].min(low[node]);
            }
            if low[node] == order[node] {
                let from = stack.iter().rposition(|other| *other == node).unwrap_or(0);
                let component = stack.split_off(from);
                component.iter().for_each(|member| on_stack[*member] = false);
                result.push(component);
            }
        }
    }
    result
}

/// A shortest way from `start` back to it inside the component: each node with the edge it leaves by.
fn round(graph: &[Vec<(usize, usize)>], component: &[usize], start: usize) -> Vec<(usize, usize)> {
    let inside: std::collections::HashSet<usize> = component.iter().copied().collect();
    let mut reached_from: HashMap<usize, (usize, usize)> = HashMap::new();
    let mut queue = VecDeque::from([start]);
    'search: while let Some(node) = queue.pop_front() {
        for (next, edge) in graph[node].iter().filter(|(next, _)| inside.contains(next)) {
            if !reached_from.contains_key(next) {
                reached_from.insert(*next, (node, *edge));
                queue.push_back(*next);
            }
            if *next == start {
                break 'search;
            }
        }
    }
    let mut way = Vec::new();
    let mut at = start;
    while let Some((from, edge)) = reached_from.get(&at).copied() {
        way.push((from, edge));
        at = from;
        if at == start {
            break;
        }
    }
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id;

    #[test]
    fn the_matcher_agrees_with_the_definition() {
        let patterns = ["a.b", "a.*", "*.b", "a.>", ">", "*", "a.*.c", "a.b.c", "*.*.>"];
        let mut matcher = Matcher::default();
        patterns.iter().enumerate().for_each(|(at, pattern)| matcher.insert(pattern, at));
        for subject in ["a", "b", "a.b", "a.c", "b.b", "a.b.c", "a.x.c", "x.y.z", "a.b.c.d"] {
            let expected: Vec<usize> =
                (0..patterns.len()).filter(|at| id::subject_matches(patterns[*at], subject)).collect();
            assert_eq!(matcher.matches(subject), expected, "{subject}");
        }
    }

    #[test]
    fn components_and_rounds_are_found() {
        let edges = |to: &[usize]| to.iter().map(|n| (*n, 0)).collect::<Vec<_>>();
        let graph = vec![edges(&[1]), edges(&[2, 3]), edges(&[0]), edges(&[]), edges(&[4])];
        let mut cyclic: Vec<usize> = components(&graph).into_iter().find(|c| c.len() > 1).unwrap();
        cyclic.sort_unstable();
        assert_eq!(cyclic, [0, 1, 2]);
        assert_eq!(round(&graph, &cyclic, 0).iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_chain_of_a_hundred_thousand_needs_no_deep_stack() {
        let graph: Vec<Vec<(usize, usize)>> = (0..100_000).map(|n| vec![((n + 1) % 100_000, 0)]).collect();
        assert_eq!(components(&graph).len(), 1);
    }
}

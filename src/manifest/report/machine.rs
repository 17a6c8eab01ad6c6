//! For programs: JSON, GitHub workflow commands, SARIF 2.1.0.

use serde_json::{Value, json};

use super::Summary;
use crate::manifest::problem::{Code, Place, Problem, Severity};

fn region(place: &Place) -> Option<[usize; 4]> {
    let (start, end) = (place.start()?, place.end()?);
    Some([start.line, start.column, end.line, end.column.max(start.column + usize::from(end.line == start.line))])
}

fn place_json(place: &Place) -> Value {
    let mut value = json!({ "file": place.source.path });
    if let Some([line, column, end_line, end_column]) = region(place) {
        value["line"] = json!(line);
        value["column"] = json!(column);
        value["endLine"] = json!(end_line);
        value["endColumn"] = json!(end_column);
    }
    value
}

/// `{"problems": […], "errors", "warnings", "manifests"}`.
pub fn json(problems: &[Problem], summary: Summary) -> String {
    let listed: Vec<Value> = problems
        .iter()
        .map(|problem| {
            let mut value = json!({
                "code": problem.code.as_str(),
                "severity": problem.severity.as_str(),
                "message": problem.message,
                "place": place_json(&problem.place),
            });
            if !problem.labels.is_empty() {
                value["related"] = problem
                    .labels
                    .iter()
                    .map(|label| json!({ "message": label.text, "place": place_json(&label.place) }))
                    .collect();
            }
            if let Some(help) = &problem.help {
                value["help"] = json!(help);
            }
            value
        })
        .collect();
    let whole = json!({
        "problems": listed,
        "errors": summary.errors,
        "warnings": summary.warnings,
        "manifests": summary.manifests,
    });
    format!("{whole:#}")
}

/// One workflow command a line, so that problems show up at their lines in a pull request.
pub fn github(problem: &Problem) -> String {
    let mut properties = format!("file={}", property(&problem.place.source.path));
    if let Some([line, column, end_line, end_column]) = region(&problem.place) {
        properties.push_str(&format!(",line={line},col={column},endLine={end_line},endColumn={end_column}"));
    }
    properties.push_str(&format!(",title={}", property(&format!("{} {}", problem.code, problem.code.title()))));
    let mut message = problem.message.clone();
    for label in &problem.labels {
        message.push_str(&format!("\n{}: {}", label.place, label.text));
    }
    if let Some(help) = &problem.help {
        message.push_str(&format!("\nhelp: {help}"));
    }
    format!("::{} {properties}::{}", problem.severity.as_str(), data(&message))
}

/// What a workflow command needs escaped in its message.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// What a workflow command needs escaped in a property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// A SARIF log with one run.
pub fn sarif(problems: &[Problem]) -> String {
    let mut codes: Vec<Code> = problems.iter().map(|problem| problem.code).collect();
    codes.sort_unstable();
    codes.dedup();
    let rules: Vec<Value> = codes
        .iter()
        .map(|code| {
            json!({
                "id": code.as_str(),
                "shortDescription": { "text": code.title() },
                "help": { "text": code.page(), "markdown": code.page() },
            })
        })
        .collect();
    let results: Vec<Value> = problems.iter().map(|problem| sarif_result(problem, &codes)).collect();
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "vejas", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    });
    format!("{log:#}")
}

fn sarif_result(problem: &Problem, codes: &[Code]) -> Value {
    let message = match &problem.help {
        Some(help) => format!("{}\nhelp: {help}", problem.message),
        None => problem.message.clone(),
    };
    let mut result = json!({
        "ruleId": problem.code.as_str(),
        "ruleIndex": codes.binary_search(&problem.code).unwrap_or(0),
        "level": match problem.severity { Severity::Error => "error", Severity::Warning => "warning" },
        "message": { "text": message },
        "locations": [sarif_location(&problem.place)],
    });
    if !problem.labels.is_empty() {
        let related = problem.labels.iter().enumerate().map(|(at, label)| {
            let mut location = sarif_location(&label.place);
            location["id"] = json!(at + 1);
            location["message"] = json!({ "text": label.text });
            location
        });
        result["relatedLocations"] = related.collect();
    }
    result
}

fn sarif_location(place: &Place) -> Value {
    let uri = place.source.path.replace('%', "%25").replace(' ', "%20");
    let mut physical = json!({ "artifactLocation": { "uri": uri } });
    if let Some([line, column, end_line, end_column]) = region(place) {
        physical["region"] =
            json!({ "startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column });
    }
    json!({ "physicalLocation": physical })
}

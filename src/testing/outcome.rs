//! What came out of a flow, in the words of a manifest.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use crate::flow::message::{self, Headers};
use crate::id::Names;
use crate::transforms::Passed;

/// Everything that came out, in order.
#[derive(Debug, Default)]
pub struct Outcome {
    pub outputs: Vec<Output>,
    pub dead_letters: Vec<DeadLetter>,
    pub ended: u64,
}

#[derive(Debug)]
pub struct Output {
    pub subject: String,
    pub id: String,
    pub headers: BTreeMap<String, String>,
    pub payload: Vec<u8>,
}

#[derive(Debug)]
pub struct DeadLetter {
    pub id: String,
    pub code: String,
    pub text: String,
}

impl Outcome {
    pub fn add(&mut self, names: &Names, passed: Passed) {
        self.ended += passed.ended;
        for output in passed.outputs {
            self.outputs.push(Output {
                subject: names.written(&output.subject).to_owned(),
                id: id(&output.headers),
                headers: output.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
                payload: output.payload.to_vec(),
            });
        }
        if let Some((letter, failure)) = passed.letter {
            self.dead_letters.push(DeadLetter { id: id(&letter.headers), code: failure.code, text: failure.message });
        }
    }

    /// The contents of a golden file: what does not change with the version of the flow or the folder it is run from, so
    /// neither digests nor the texts of failures.
    pub fn golden(&self) -> String {
        let outputs: Vec<Json> = self.outputs.iter().map(Output::golden).collect();
        let letters: Vec<Json> =
            self.dead_letters.iter().map(|letter| json!({ "id": letter.id, "code": letter.code })).collect();
        format!("{:#}\n", json!({ "output": outputs, "deadLetters": letters, "ended": self.ended }))
    }
}

impl Output {
    /// The payload as JSON, when it is.
    pub fn json(&self) -> Option<Json> {
        serde_json::from_slice(&self.payload).ok()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }

    fn golden(&self) -> Json {
        let mut object = json!({ "subject": self.subject, "id": self.id });
        let own: BTreeMap<&String, &String> = self
            .headers
            .iter()
            .filter(|(name, _)| ![message::ID, message::REVISION, message::HOP].contains(&name.as_str()))
            .collect();
        if !own.is_empty() {
            object["headers"] = json!(own);
        }
        match self.json() {
            Some(payload) => object["payload"] = payload,
            None => object["text"] = Json::from(self.text()),
        }
        object
    }
}

fn id(headers: &Headers) -> String {
    headers.get(message::ID).unwrap_or_default().to_owned()
}

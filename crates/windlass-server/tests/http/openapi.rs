//! The description of the API: committed, and true of what every path answers.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{Server, on_every_store};

/// Set it to write the description anew: `WINDLASS_OPENAPI=write cargo test … openapi`.
const VARIABLE: &str = "WINDLASS_OPENAPI";

#[test]
fn the_committed_description_is_that_of_the_code() {
    let server = Server::in_memory();
    let told = server.get("/openapi.json").json();
    let told = format!("{}\n", serde_json::to_string_pretty(&told).expect("it is JSON"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    if std::env::var(VARIABLE).as_deref() == Ok("write") {
        std::fs::write(&path, &told).expect("it can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == told, "openapi.json is not that of the code; {VARIABLE}=write writes it anew");
}

#[test]
fn every_path_answers_its_example_as_it_is_described() {
    on_every_store(|server| {
        let document = server.get("/openapi.json").json();
        let mut checked = 0;
        for (path, methods) in document["paths"].as_object().expect("there are paths") {
            for (method, operation) in methods.as_object().expect("they have methods") {
                check_operation(server, &document, path, method, operation);
                checked += 1;
            }
        }
        assert_eq!(checked, 17);
    });
}

fn check_operation(server: &Server, document: &Value, path: &str, method: &str, operation: &Value) {
    let name = operation["operationId"].as_str().expect("it has a name");
    let id = server.enqueue(&json!({ "kind": "hello" }));
    if ["replay_job", "remove_job"].contains(&name) {
        server.change(&format!("/v1/jobs/{id}/cancel"));
    }
    let path = path.replace("{id}", &id).replace("{name}", "default");
    let example = &operation["requestBody"]["content"]["application/json"]["example"];
    let body = if example.is_null() { String::new() } else { example.to_string() };
    let headers = [("content-type", "application/json")];
    let answer = server.client().send(&method.to_uppercase(), &path, &headers, &body);
    let described = &operation["responses"][answer.status.to_string()];
    assert!(described.is_object(), "{name}: {answer:?}");
    let schema = &described["content"]["application/json"]["schema"];
    match schema.is_null() {
        true => assert_eq!(answer.body, "", "{name}"),
        false => check(document, schema, &answer.json()).unwrap_or_else(|why| {
            panic!("{name} answers what is not described: {why}: {answer:?}")
        }),
    }
}

/// Whether a value is as a schema says: enough of JSON Schema for what is used here.
fn check(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let pointer = name.trim_start_matches('#');
        let schema = document.pointer(pointer).ok_or_else(|| format!("{name} is missing"))?;
        return check(document, schema, value);
    }
    if let Some(forms) = schema["oneOf"].as_array() {
        let failed = |form| check(document, form, value).err();
        let why: Vec<String> = forms.iter().map_while(failed).collect();
        return if why.len() < forms.len() { Ok(()) } else { Err(why.join(", and ")) };
    }
    if let Some(parts) = schema["allOf"].as_array() {
        return check_object(document, &merged(document, parts), value);
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        Value::Null => return Ok(()),
        one => vec![one.clone()],
    };
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits = types.iter().any(|of| of == found || (of == "number" && found == "integer"));
    if !fits {
        return Err(format!("{value} is {found} and not {types:?}"));
    }
    match value {
        Value::Array(items) => {
            items.iter().try_for_each(|item| check(document, &schema["items"], item))
        }
        Value::Object(_) => check_object(document, schema, value),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// One object of all parts.
fn merged(document: &Value, parts: &[Value]) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for part in parts {
        let pointer = part["$ref"].as_str().map(|name| name.trim_start_matches('#'));
        let part = pointer.and_then(|pointer| document.pointer(pointer)).unwrap_or(part);
        properties.extend(part["properties"].as_object().cloned().unwrap_or_default());
        required.extend(part["required"].as_array().cloned().unwrap_or_default());
    }
    json!({ "properties": properties, "required": required })
}

/// Whether an object has all the fields that are required, and no others than are described.
fn check_object(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let object = value.as_object().ok_or_else(|| format!("{value} is no object"))?;
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    if let Some(missing) = required.iter().filter_map(Value::as_str).find(|it| value[it].is_null())
        && !object.contains_key(missing)
    {
        return Err(format!("`{missing}` is missing"));
    }
    let Some(properties) = schema["properties"].as_object() else { return Ok(()) };
    object.iter().try_for_each(|(name, field)| {
        let described = properties.get(name).ok_or_else(|| format!("`{name}` is not described"))?;
        check(document, described, field).map_err(|why| format!("{name}: {why}"))
    })
}

//! What roles of the database may do, as SQL that the owner of the schema runs once.

use super::Schema;

/// SQL that lets `role` enqueue with `select windlass.enqueue(…)`, inside its own transactions, and
/// do nothing else: it can neither read nor change what is stored.
///
/// To be run by the owner of the schema, when it is there. Running it twice is harmless.
pub fn grant_enqueue_sql(schema: &Schema, role: &str) -> String {
    let role = quoted(role);
    format!(
        "grant usage on schema {schema} to {role};\n\
         grant execute on function {schema}.enqueue to {role};\n"
    )
}

/// SQL that lets `role` open the store and run workers, without owning the schema: all but migrate.
///
/// Such a role opens with `windlass_migrate=off`. To be run by the owner of the schema, and again
/// after each migration. Running it twice is harmless.
pub fn grant_work_sql(schema: &Schema, role: &str) -> String {
    let role = quoted(role);
    format!(
        "grant usage on schema {schema} to {role};\n\
         grant select on all tables in schema {schema} to {role};\n\
         grant insert, update, delete on all tables in schema {schema} to {role};\n\
         revoke insert, update, delete on {schema}.migration from {role};\n\
         grant truncate on {schema}.ready_0, {schema}.ready_1 to {role};\n\
         grant truncate on {schema}.counter_delta_0, {schema}.counter_delta_1 to {role};\n\
         grant truncate on {schema}.low_water to {role};\n\
         grant usage, select on all sequences in schema {schema} to {role};\n\
         grant update on {schema}.clock_shift, {schema}.clock_mark to {role};\n\
         grant update on {schema}.clock_watch to {role};\n\
         grant execute on all functions in schema {schema} to {role};\n"
    )
}

/// The views that operators read.
const VIEWS: [&str; 5] = ["jobs", "dead_letters", "queues", "workers", "schedules"];

/// SQL that lets `role` read the views for operators, and do nothing else.
///
/// To be run by the owner of the schema, when it is there. Running it twice is harmless.
pub fn grant_read_sql(schema: &Schema, role: &str) -> String {
    let role = quoted(role);
    let views = VIEWS.map(|view| format!("{schema}.{view}")).join(", ");
    // Functions within a view are called by whoever reads it.
    let functions = ["_state_name", "_never_started", "_timestamp", "_json", "_reason"];
    let functions = functions.map(|function| format!("{schema}.{function}")).join(", ");
    format!(
        "grant usage on schema {schema} to {role};\n\
         grant select on {views} to {role};\n\
         grant execute on function {functions} to {role};\n"
    )
}

/// A name that SQL takes for nothing else, whatever is in it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

//! Holds `proto/` to its conventions, and to what it was: within v1 nothing is renamed, renumbered,
//! retyped or removed.

#![cfg(feature = "full")]
#![allow(clippy::expect_used, reason = "what fails here fails the test")]

use std::collections::BTreeSet;

use execgate::pb::FILE_DESCRIPTOR_SET;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, ServiceDescriptorProto,
};

/// The contracts: each is a package, with so many files. What it was is in `tests/snapshots/PACKAGE.txt`.
const PACKAGES: [(&str, usize); 4] = [
    ("execgate.policy.v1", 3),
    ("execgate.audit.v1", 2),
    ("execgate.approval.v1", 2),
    ("execgate.session.v1", 1),
];

/// Field numbers of `descriptor.proto`, of which paths to comments are made.
mod path {
    pub(crate) const FILE_MESSAGE: i32 = 4;
    pub(crate) const FILE_ENUM: i32 = 5;
    pub(crate) const FILE_SERVICE: i32 = 6;
    pub(crate) const MESSAGE_FIELD: i32 = 2;
    pub(crate) const MESSAGE_NESTED: i32 = 3;
    pub(crate) const MESSAGE_ENUM: i32 = 4;
    pub(crate) const MESSAGE_ONEOF: i32 = 8;
    pub(crate) const ENUM_VALUE: i32 = 2;
    pub(crate) const SERVICE_METHOD: i32 = 2;
}

/// Repeated fields whose name is singular because what they hold is one thing.
const COLLECTIVE: [&str; 2] = ["SessionStarted.command", "Session.command"];

#[test]
fn every_element_is_commented() {
    let mut faults = Vec::new();
    for element in elements() {
        if element.comment().is_empty() {
            faults.push(format!("{} has no comment", element.name));
        }
    }
    assert_none(&faults);
}

#[test]
fn the_comment_on_each_oneof_arm_says_who_sends_it() {
    let mut faults = Vec::new();
    for element in elements() {
        let Kind::Field(field) = element.kind else {
            continue;
        };
        if in_oneof(field) && !element.comment().contains("Sent by the ") {
            faults.push(format!("{} doesn't say who sends it", element.name));
        }
    }
    assert_none(&faults);
}

#[test]
fn files_lie_in_the_directory_of_their_package() {
    let mut faults = Vec::new();
    let files = PACKAGES.iter().flat_map(|(package, _)| {
        let files = files(package);
        let first = files[0].options.clone().unwrap_or_default();
        files.into_iter().map(move |file| (file, first.clone()))
    });
    for (file, first) in files {
        let directory = file.package().replace('.', "/");
        let options = file.options.clone().unwrap_or_default();
        let name = file.name().strip_prefix(&format!("{directory}/"));
        let stem = name.and_then(|name| name.strip_suffix(".proto"));
        for (holds, fault) in [
            (
                stem.is_some_and(is_snake),
                "isn't lower_snake_case.proto there",
            ),
            (file.syntax() == "proto3", "isn't proto3"),
            (file.extension.is_empty(), "has extensions"),
            (
                options.go_package.is_some() && options.go_package == first.go_package,
                "has no go_package, or another than the rest",
            ),
            (
                options.java_package.is_some() && options.java_package == first.java_package,
                "has no java_package, or another than the rest",
            ),
            (options.java_multiple_files(), "has no java_multiple_files"),
        ] {
            if !holds {
                faults.push(format!("{} {fault}", file.name()));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn names_follow_the_conventions() {
    let mut faults = Vec::new();
    for element in elements() {
        let name = &element.name;
        let own = name.rsplit('.').next().unwrap_or_default();
        let fault = match element.kind {
            Kind::Message(_) | Kind::Enum(_) | Kind::Method if !is_pascal(own) => {
                "isn't PascalCase"
            }
            Kind::Field(_) | Kind::Oneof if !is_snake(own) => "isn't lower_snake_case",
            Kind::Value { of } if !own.starts_with(&format!("{}_", screaming(of))) => {
                "isn't prefixed with its enum's name"
            }
            Kind::Value { .. } if own != own.to_uppercase() => "isn't UPPER_SNAKE_CASE",
            Kind::Service(_) if !is_pascal(own) || !own.ends_with("Service") => {
                "isn't PascalCase with Service at its end"
            }
            _ => continue,
        };
        faults.push(format!("{name} {fault}"));
    }
    assert_none(&faults);
}

#[test]
fn enums_begin_with_unspecified_and_have_no_holes() {
    let mut faults = Vec::new();
    for element in elements() {
        let Kind::Enum(descriptor) = element.kind else {
            continue;
        };
        let zero = format!("{}_UNSPECIFIED", screaming(descriptor.name()));
        if !matches!(descriptor.value.first(), Some(value) if value.number() == 0 && value.name() == zero)
        {
            faults.push(format!("{} doesn't begin with {zero} = 0", element.name));
        }
        let numbers = descriptor
            .value
            .iter()
            .map(prost_types::EnumValueDescriptorProto::number);
        let reserved = descriptor
            .reserved_range
            .iter()
            .flat_map(|range| range.start()..=range.end());
        let numbers: BTreeSet<i32> = numbers.chain(reserved).collect();
        if !numbers
            .iter()
            .copied()
            .eq(0..=numbers.last().copied().unwrap_or(-1))
        {
            faults.push(format!("{} has holes in its numbers", element.name));
        }
    }
    assert_none(&faults);
}

#[test]
fn fields_have_fitting_types_and_names_and_numbers_without_holes() {
    const UNITS: [&str; 14] = [
        "_ns",
        "_nanos",
        "_us",
        "_micros",
        "_ms",
        "_millis",
        "_milliseconds",
        "_s",
        "_sec",
        "_secs",
        "_seconds",
        "_minutes",
        "_hours",
        "_days",
    ];
    let mut faults = Vec::new();
    for element in elements() {
        let name = &element.name;
        match element.kind {
            Kind::Field(field) => {
                let is_number = !matches!(
                    field.r#type(),
                    Type::Message | Type::Enum | Type::Bytes | Type::String | Type::Bool
                );
                if is_number && UNITS.iter().any(|unit| field.name().ends_with(unit)) {
                    faults.push(format!("{name} is a number with a unit: use Duration"));
                }
                if field.r#type() == Type::Bool {
                    faults.push(format!("{name} is a bool: use an enum or a oneof"));
                }
                if field.label() == Label::Repeated
                    && !field.name().ends_with('s')
                    && !COLLECTIVE.contains(&name.as_str())
                {
                    faults.push(format!("{name} is repeated and not plural"));
                }
            }
            Kind::Message(message) => {
                let numbers = message.field.iter().map(FieldDescriptorProto::number);
                let reserved = message
                    .reserved_range
                    .iter()
                    .flat_map(|range| range.start()..range.end());
                let numbers: BTreeSet<i32> = numbers.chain(reserved).collect();
                if !numbers
                    .iter()
                    .copied()
                    .eq(1..=numbers.last().copied().unwrap_or(0))
                {
                    faults.push(format!("{name} has holes in its numbers"));
                }
            }
            _ => {}
        }
    }
    assert_none(&faults);
}

#[test]
fn each_call_has_a_request_and_a_response_of_its_own() {
    let mut faults = Vec::new();
    let mut used = BTreeSet::new();
    for element in elements() {
        let Kind::Service(service) = element.kind else {
            continue;
        };
        for method in &service.method {
            for (message, role) in [
                (method.input_type(), "Request"),
                (method.output_type(), "Response"),
            ] {
                if local(element.file.package(), message) != format!("{}{role}", method.name()) {
                    faults.push(format!("{} has the {role} {message}", method.name()));
                }
                if !used.insert(message.to_owned()) {
                    faults.push(format!("{message} is used by several calls"));
                }
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn nothing_is_removed_renamed_renumbered_or_retyped() {
    for (package, _) in PACKAGES {
        let name = format!("tests/snapshots/{package}.txt");
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(&name);
        let snapshot = std::fs::read_to_string(path).unwrap_or_default();
        let before: BTreeSet<&str> = snapshot.lines().collect();
        let lines = contract(package);
        let now: BTreeSet<&str> = lines.iter().map(String::as_str).collect();

        let gone: Vec<_> = before
            .difference(&now)
            .filter(|line| !is_reserved(package, line))
            .collect();
        assert!(
            gone.is_empty(),
            "proto/ breaks those who were built against it. Gone or changed:\n{gone:#?}\n\
             A field that is no longer used is removed by reserving both its number and its name; \
             everything else stays as it is, or goes into a package v2."
        );
        let added: Vec<_> = now.difference(&before).copied().collect();
        assert!(
            added.is_empty(),
            "proto/ has what {name} hasn't. Additions are compatible; once you are sure of their \
             names, numbers and types, add these lines there, in any place:\n{}",
            added.join("\n")
        );
    }
}

/// The contract, a line for each thing that a peer may rely on.
fn contract(package: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for element in elements_with_map_entries(package) {
        let name = &element.name;
        match element.kind {
            Kind::Message(message) => {
                lines.push(format!("message {name}"));
                for field in &message.field {
                    lines.push(format!(
                        "field {name}.{} = {}: {}",
                        field.name(),
                        field.number(),
                        type_of(package, message, field)
                    ));
                }
            }
            Kind::Enum(descriptor) => {
                for value in &descriptor.value {
                    lines.push(format!(
                        "value {name}.{} = {}",
                        value.name(),
                        value.number()
                    ));
                }
            }
            Kind::Service(service) => {
                for method in &service.method {
                    let stream = |streams| if streams { "stream " } else { "" };
                    lines.push(format!(
                        "rpc {package}.{name}/{}({}{}) returns ({}{})",
                        method.name(),
                        stream(method.client_streaming()),
                        local(package, method.input_type()),
                        stream(method.server_streaming()),
                        local(package, method.output_type()),
                    ));
                }
            }
            Kind::Field(_) | Kind::Oneof | Kind::Value { .. } | Kind::Method => {}
        }
    }
    lines
}

fn type_of(package: &str, message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let mut text = String::new();
    if field.label() == Label::Repeated {
        text.push_str("repeated ");
    }
    if field.proto3_optional() {
        text.push_str("optional ");
    }
    match field.r#type() {
        Type::Message | Type::Enum => text.push_str(local(package, field.type_name())),
        other => text.push_str(
            &other
                .as_str_name()
                .trim_start_matches("TYPE_")
                .to_lowercase(),
        ),
    }
    if in_oneof(field) {
        let index = usize::try_from(field.oneof_index()).expect("an index");
        text.push_str(" in ");
        text.push_str(message.oneof_decl[index].name());
    }
    text
}

/// Whether a line of the snapshot is about a field or value whose number and name are both reserved.
fn is_reserved(package: &str, line: &str) -> bool {
    let Some((name, number)) = line
        .split_once(' ')
        .and_then(|(_, rest)| rest.split_once(" = "))
    else {
        return false;
    };
    let number = number.split(':').next().unwrap_or_default();
    let (Some((owner, own)), Ok(number)) = (name.rsplit_once('.'), number.parse::<i32>()) else {
        return false;
    };
    elements().iter().any(|element| {
        element.file.package() == package
            && element.name == owner
            && match element.kind {
                Kind::Message(message) => {
                    message.reserved_name.iter().any(|name| name == own)
                        && message
                            .reserved_range
                            .iter()
                            .any(|range| (range.start()..range.end()).contains(&number))
                }
                Kind::Enum(descriptor) => {
                    descriptor.reserved_name.iter().any(|name| name == own)
                        && descriptor
                            .reserved_range
                            .iter()
                            .any(|range| (range.start()..=range.end()).contains(&number))
                }
                _ => false,
            }
    })
}

/// Something that a name and a comment belong to.
#[derive(Clone)]
struct Element {
    /// Within the package.
    name: String,
    kind: Kind,
    file: &'static FileDescriptorProto,
    path: Vec<i32>,
}

#[derive(Clone, Copy)]
enum Kind {
    Message(&'static DescriptorProto),
    Field(&'static FieldDescriptorProto),
    Oneof,
    Enum(&'static EnumDescriptorProto),
    Value { of: &'static str },
    Service(&'static ServiceDescriptorProto),
    Method,
}

impl Element {
    fn comment(&self) -> &str {
        let info = self.file.source_code_info.as_ref().expect("comments");
        info.location
            .iter()
            .find(|location| location.path == self.path)
            .map_or("", |location| location.leading_comments().trim())
    }
}

fn files(package: &str) -> Vec<&'static FileDescriptorProto> {
    static SET: std::sync::OnceLock<FileDescriptorSet> = std::sync::OnceLock::new();
    let set = SET.get_or_init(|| FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("a set"));
    let files: Vec<_> = set
        .file
        .iter()
        .filter(|file| file.package() == package)
        .collect();
    let count = PACKAGES.iter().find(|(name, _)| *name == package);
    assert_eq!(
        Some(files.len()),
        count.map(|(_, count)| *count),
        "{package}"
    );
    files
}

/// All elements that somebody wrote: without the entries of maps, which are implied.
fn elements() -> Vec<Element> {
    let packages = PACKAGES.iter();
    packages
        .flat_map(|(package, _)| elements_of(package))
        .collect()
}

fn elements_of(package: &str) -> Vec<Element> {
    let mut elements = elements_with_map_entries(package);
    let entries: Vec<String> = elements
        .iter()
        .filter(|element| matches!(element.kind, Kind::Message(message) if is_map_entry(message)))
        .map(|element| element.name.clone())
        .collect();
    elements.retain(|element| !entries.iter().any(|entry| element.name.starts_with(entry)));
    elements
}

fn elements_with_map_entries(package: &str) -> Vec<Element> {
    let mut elements = Vec::new();
    for file in files(package) {
        let mut add = |element| elements.push(element);
        for (index, message) in (0..).zip(&file.message_type) {
            message_elements(file, "", message, vec![path::FILE_MESSAGE, index], &mut add);
        }
        for (index, descriptor) in (0..).zip(&file.enum_type) {
            enum_elements(file, "", descriptor, vec![path::FILE_ENUM, index], &mut add);
        }
        for (index, service) in (0..).zip(&file.service) {
            let name = service.name();
            let here = vec![path::FILE_SERVICE, index];
            for (index, method) in (0..).zip(&service.method) {
                add(Element {
                    name: format!("{name}.{}", method.name()),
                    kind: Kind::Method,
                    file,
                    path: [&here[..], &[path::SERVICE_METHOD, index]].concat(),
                });
            }
            add(Element {
                name: name.to_owned(),
                kind: Kind::Service(service),
                file,
                path: here,
            });
        }
    }
    elements
}

fn message_elements(
    file: &'static FileDescriptorProto,
    prefix: &str,
    message: &'static DescriptorProto,
    here: Vec<i32>,
    add: &mut dyn FnMut(Element),
) {
    let name = format!("{prefix}{}", message.name());
    let below = |kind, index| [&here[..], &[kind, index]].concat();
    for (index, field) in (0..).zip(&message.field) {
        add(Element {
            name: format!("{name}.{}", field.name()),
            kind: Kind::Field(field),
            file,
            path: below(path::MESSAGE_FIELD, index),
        });
    }
    for (index, oneof) in (0..).zip(&message.oneof_decl) {
        add(Element {
            name: format!("{name}.{}", oneof.name()),
            kind: Kind::Oneof,
            file,
            path: below(path::MESSAGE_ONEOF, index),
        });
    }
    let prefix = format!("{name}.");
    for (index, nested) in (0..).zip(&message.nested_type) {
        let here = below(path::MESSAGE_NESTED, index);
        message_elements(file, &prefix, nested, here, add);
    }
    for (index, descriptor) in (0..).zip(&message.enum_type) {
        let here = below(path::MESSAGE_ENUM, index);
        enum_elements(file, &prefix, descriptor, here, add);
    }
    add(Element {
        name,
        kind: Kind::Message(message),
        file,
        path: here,
    });
}

fn enum_elements(
    file: &'static FileDescriptorProto,
    prefix: &str,
    descriptor: &'static EnumDescriptorProto,
    here: Vec<i32>,
    add: &mut dyn FnMut(Element),
) {
    let name = format!("{prefix}{}", descriptor.name());
    for (index, value) in (0..).zip(&descriptor.value) {
        add(Element {
            name: format!("{name}.{}", value.name()),
            kind: Kind::Value {
                of: descriptor.name(),
            },
            file,
            path: [&here[..], &[path::ENUM_VALUE, index]].concat(),
        });
    }
    add(Element {
        name,
        kind: Kind::Enum(descriptor),
        file,
        path: here,
    });
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message
        .options
        .as_ref()
        .is_some_and(prost_types::MessageOptions::map_entry)
}

/// Whether a field is an arm of a oneof that somebody wrote.
fn in_oneof(field: &FieldDescriptorProto) -> bool {
    field.oneof_index.is_some() && !field.proto3_optional()
}

/// A type's name without this package.
fn local<'n>(package: &str, name: &'n str) -> &'n str {
    let name = name.trim_start_matches('.');
    name.strip_prefix(package)
        .map_or(name, |name| name.trim_start_matches('.'))
}

fn is_snake(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.contains("__")
        && !name.ends_with('_')
        && name
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

fn is_pascal(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// `NetworkAccess` as `NETWORK_ACCESS`.
fn screaming(name: &str) -> String {
    let mut text = String::new();
    for (index, character) in name.char_indices() {
        if index > 0 && character.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(character.to_ascii_uppercase());
    }
    text
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "{faults:#?}");
}

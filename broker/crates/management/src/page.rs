//! Query strings, and pagination, sorting and column selection of lists in RabbitMQ's format.

use crate::error::ApiError;
use auth::Pattern;
use axum::response::{IntoResponse as _, Response};
use percent_encoding::percent_decode_str;
use serde_json::{Value as Json, json};
use std::cmp::Ordering;

/// Default and maximum number of items of a page.
const DEFAULT_PAGE_SIZE: usize = 100;
const MAX_PAGE_SIZE: usize = 500;
/// Maximum number of parsed query parameters.
const MAX_PARAMETERS: usize = 32;

/// The decoded query string.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(raw: Option<&str>) -> Query {
        let decode = |text: &str| {
            let text = text.replace('+', " ");
            percent_decode_str(&text).decode_utf8_lossy().into_owned()
        };
        let pairs = raw.unwrap_or("").split('&').filter(|p| !p.is_empty());
        Query(
            pairs
                .take(MAX_PARAMETERS)
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key), decode(value))
                })
                .collect(),
        )
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }

    /// All values of a key that may be repeated.
    pub(crate) fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        let pairs = self.0.iter().filter(move |(k, _)| k == key);
        pairs.map(|(_, v)| v.as_str())
    }

    pub(crate) fn is_true(&self, key: &str) -> bool {
        self.get(key) == Some("true")
    }

    /// Reduces a document to the requested `columns`; returns it unchanged without that parameter.
    pub(crate) fn columns_of(&self, document: Json) -> Json {
        let presentation = Presentation::of(self);
        match presentation.columns.is_empty() {
            true => document,
            false => presentation.pick(&document),
        }
    }

    fn number(&self, key: &str) -> Result<Option<i64>, ApiError> {
        let number = self.get(key).map(str::parse);
        number.transpose().map_err(|_| bad_pagination())
    }

    /// Page number and page size, if the request asks for pages.
    fn page_request(&self) -> Result<Option<(usize, usize)>, ApiError> {
        let Some(page) = self.number("page")? else {
            return Ok(None);
        };
        let size = self.number("page_size")?;
        let max = i64::try_from(MAX_PAGE_SIZE).unwrap_or(i64::MAX);
        let in_range =
            |n: i64, max: i64| usize::try_from(n).ok().filter(|_| (1..=max).contains(&n));
        let valid = (
            in_range(page, i64::MAX),
            size.map(|size| in_range(size, max)),
        );
        match valid {
            (Some(page), None) => Ok(Some((page, DEFAULT_PAGE_SIZE))),
            (Some(page), Some(Some(size))) => Ok(Some((page, size))),
            _ => {
                // Erlang's term for a missing value.
                let size = size.map_or("undefined".to_owned(), |size| size.to_string());
                Err(ApiError::pagination(format!(
                    "Invalid pagination parameters: page number {page}, page size {size}"
                )))
            }
        }
    }
}

fn bad_pagination() -> ApiError {
    ApiError::bad_request("Pagination parameters are invalid")
}

/// Filter, pagination, sort order and columns that a request asks for.
pub(crate) struct ListRequest {
    filter: Option<Pattern>,
    page_request: Option<(usize, usize)>,
    presentation: Presentation,
}

/// Sort order and columns. They refer to members of the items' JSON, so they apply only after
/// rendering.
#[derive(Clone, Default)]
struct Presentation {
    /// A path within an item, such as `message_stats.publish`.
    sort: Option<String>,
    reverse: bool,
    columns: Vec<String>,
}

fn member_or_null<'a>(item: &'a Json, path: &str) -> &'a Json {
    path.split('.').fold(item, |value, key| &value[key])
}

/// Returns None if the item has no such member.
fn member<'a>(item: &'a Json, path: &str) -> Option<&'a Json> {
    path.split('.').try_fold(item, |value, key| value.get(key))
}

type SortKey = (u8, f64, String);

/// Sort key: missing values first, then booleans, numbers and strings.
fn sort_key(value: &Json) -> SortKey {
    match value {
        Json::Null => (0, 0.0, String::new()),
        Json::Bool(v) => (1, f64::from(u8::from(*v)), String::new()),
        Json::Number(v) => (2, v.as_f64().unwrap_or(0.0), String::new()),
        Json::String(v) => (3, 0.0, v.clone()),
        other => (4, 0.0, other.to_string()),
    }
}

impl Presentation {
    fn of(query: &Query) -> Presentation {
        let columns = query.get("columns").unwrap_or("").split(',');
        Presentation {
            sort: query
                .get("sort")
                .filter(|s| !s.is_empty())
                .map(str::to_owned),
            reverse: query.is_true("sort_reverse"),
            columns: columns
                .map(str::trim)
                .filter(|c| !c.is_empty())
                .map(str::to_owned)
                .collect(),
        }
    }

    fn order(&self, items: &mut [Json]) {
        let Some(path) = &self.sort else {
            return;
        };
        let mut keyed: Vec<_> = items
            .iter_mut()
            .map(|i| (sort_key(member_or_null(i, path)), std::mem::take(i)))
            .collect();
        keyed.sort_by(|(a, _), (b, _)| self.compare(a, b));
        for (slot, (_, item)) in items.iter_mut().zip(keyed) {
            *slot = item;
        }
    }

    fn compare(&self, a: &SortKey, b: &SortKey) -> Ordering {
        let numbers = a.1.total_cmp(&b.1);
        let order = a.0.cmp(&b.0).then(numbers).then_with(|| a.2.cmp(&b.2));
        if self.reverse { order.reverse() } else { order }
    }

    fn pick(&self, item: &Json) -> Json {
        let mut picked = json!({});
        for path in &self.columns {
            // A member that is null is present and kept.
            let Some(value) = member(item, path) else {
                continue;
            };
            let mut slot = &mut picked;
            for key in path.split('.') {
                if !slot.is_object() {
                    *slot = json!({});
                }
                slot = &mut slot[key];
            }
            *slot = value.clone();
        }
        picked
    }
}

impl ListRequest {
    pub(crate) fn of(query: &Query) -> Result<ListRequest, ApiError> {
        let filter = match query.get("name") {
            None | Some("") => None,
            Some(name) => Some(if query.is_true("use_regex") {
                Pattern::compile(name).map_err(|_| bad_pagination())?
            } else {
                Pattern::Literal {
                    text: name.into(),
                    start: false,
                    end: false,
                }
            }),
        };
        let page_request = query.page_request()?;
        let presentation = Presentation::of(query);
        Ok(ListRequest {
            filter,
            page_request,
            presentation,
        })
    }

    /// Returns true if [`ListRequest::cut`] returns only one page.
    pub(crate) fn is_paged(&self) -> bool {
        self.page_request.is_some() && self.presentation.sort.is_none()
    }

    /// Filters and pages a list before it is rendered. Pass the rendered items to [`PageOfItems::respond`].
    pub(crate) fn cut<T>(
        &self,
        mut items: Vec<T>,
        name: impl Fn(&T) -> &str,
    ) -> Result<(Vec<T>, PageOfItems), ApiError> {
        let total = items.len();
        if let Some(filter) = &self.filter {
            items.retain(|item| filter.matches(name(item)));
        }
        let filtered = items.len();
        let mut cut = PageOfItems {
            metadata: None,
            window: None,
            presentation: self.presentation.clone(),
        };
        let Some((page, size)) = self.page_request else {
            return Ok((items, cut));
        };
        let pages = filtered.div_ceil(size);
        if page > pages.max(1) {
            return Err(ApiError::page_out_of_range(format!(
                "Page out of range, page: {page} page size: {size}, len: {filtered}"
            )));
        }
        let skip = (page - 1) * size;
        cut.metadata = Some(json!({
            "total_count": total,
            "filtered_count": filtered,
            "item_count": size.min(filtered - skip.min(filtered)),
            "page": page,
            "page_size": size,
            "page_count": pages.max(1),
        }));
        if self.presentation.sort.is_some() {
            cut.window = Some((skip, size));
            return Ok((items, cut));
        }
        let part: Vec<T> = items.into_iter().skip(skip).take(size).collect();
        Ok((part, cut))
    }
}

/// Page metadata, and the steps that need the items' JSON. A whole list has no metadata.
pub(crate) struct PageOfItems {
    metadata: Option<Json>,
    /// Offset and size of the page if the list must be sorted before paging.
    window: Option<(usize, usize)>,
    presentation: Presentation,
}

impl PageOfItems {
    /// Sorts and pages the items before they are rendered, if `value` can compute their sort key.
    /// Otherwise [`PageOfItems::respond`] does it.
    pub(crate) fn sort_and_page<T>(
        &mut self,
        items: Vec<T>,
        value: impl Fn(&T, &str) -> Option<Json>,
    ) -> Vec<T> {
        let (Some(path), Some((skip, size))) = (&self.presentation.sort, self.window) else {
            return items;
        };
        let sort_keys: Option<Vec<SortKey>> = items
            .iter()
            .map(|item| value(item, path).map(|v| sort_key(&v)))
            .collect();
        let Some(sort_keys) = sort_keys else {
            return items;
        };
        let mut keyed: Vec<_> = sort_keys.into_iter().zip(items).collect();
        keyed.sort_by(|(a, _), (b, _)| self.presentation.compare(a, b));
        self.window = None;
        self.presentation.sort = None;
        let page = keyed.into_iter().skip(skip).take(size);
        page.map(|(_, item)| item).collect()
    }

    pub(crate) fn respond(self, mut items: Vec<Json>) -> Response {
        self.presentation.order(&mut items);
        if let Some((skip, size)) = self.window {
            items = items.into_iter().skip(skip).take(size).collect();
        }
        if !self.presentation.columns.is_empty() {
            items = items.iter().map(|i| self.presentation.pick(i)).collect();
        }
        match self.metadata {
            None => axum::Json(items).into_response(),
            Some(mut metadata) => {
                metadata["items"] = Json::Array(items);
                axum::Json(metadata).into_response()
            }
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn query_string_is_decoded() {
        let query = Query::parse(Some("a=1&name=%2F+x&flag&if-empty=true"));
        assert_eq!(query.get("name"), Some("/ x"));
        assert_eq!(query.get("flag"), Some(""));
        assert!(query.is_true("if-empty") && !query.is_true("a"));
        assert_eq!(query.get("none"), None);
    }

    #[test]
    fn list_is_filtered_and_paged() {
        let names: Vec<String> = (0..25).map(|n| format!("q{n:02}")).collect();
        let cut = |text: &str| {
            let query = Query::parse(Some(text));
            let window = ListRequest::of(&query)?;
            let (part, cut) = window.cut(names.clone(), |n| n)?;
            Ok::<_, ApiError>((part.len(), cut.metadata.map(|a| a["page_count"].clone())))
        };
        assert_eq!(cut("").unwrap(), (25, None));
        assert_eq!(cut("name=q1").unwrap(), (10, None));
        assert_eq!(cut("page=3&page_size=10").unwrap(), (5, Some(json!(3))));
        assert_eq!(
            cut("page=1&page_size=10&name=^q0&use_regex=true").unwrap(),
            (10, Some(json!(1)))
        );
        for (bad, error) in [
            ("page=4&page_size=10", "page_out_of_range"),
            ("page=0", "invalid_pagination_parameters"),
            ("page=x", "bad_request"),
            ("page=-1", "invalid_pagination_parameters"),
            ("page=1&page_size=501", "invalid_pagination_parameters"),
            ("page=1&page_size=0", "invalid_pagination_parameters"),
            ("page=1&page_size=x", "bad_request"),
            ("name=(&use_regex=true", "bad_request"),
        ] {
            assert_eq!(cut(bad).unwrap_err().error, error, "{bad}");
        }
        let reason = cut("page=0&page_size=7").unwrap_err().reason;
        assert_eq!(
            reason,
            "Invalid pagination parameters: page number 0, page size 7"
        );
    }

    #[test]
    fn items_are_sorted_and_reduced_to_columns() {
        let items = || {
            vec![
                json!({"name": "a", "n": 2, "s": {"p": 1}}),
                json!({"name": "b", "s": {"p": 9, "q": 1}}),
                json!({"name": "c", "n": 10, "s": {"p": 5}}),
            ]
        };
        let presentation = |text: &str| Presentation::of(&Query::parse(Some(text)));
        let ordered = |text: &str| {
            let mut all = items();
            presentation(text).order(&mut all);
            let names = all.iter().map(|i| i["name"].as_str().unwrap().to_owned());
            names.collect::<Vec<_>>().join("")
        };
        assert_eq!(ordered("sort=n"), "bac");
        assert_eq!(ordered("sort=n&sort_reverse=true"), "cab");
        assert_eq!(ordered("sort=s.p"), "acb");
        assert_eq!(ordered(""), "abc");
        let picked = presentation("columns=name,s.q,none").pick(&items()[1]);
        assert_eq!(picked, json!({"name": "b", "s": {"q": 1}}));
        let null = json!({"name": "b", "policy": null});
        assert_eq!(
            presentation("columns=policy,none").pick(&null),
            json!({"policy": null})
        );
    }
}

//! Query strings, and lists cut into pages as RabbitMQ's clients ask for them.

use crate::error::ApiError;
use auth::Pattern;
use axum::response::{IntoResponse as _, Response};
use percent_encoding::percent_decode_str;
use serde_json::{Value as Json, json};
use std::cmp::Ordering;

/// Items of a page when the request does not say, and at the most.
const PAGE: usize = 100;
const MAX_PAGE: usize = 500;
/// Parameters looked at.
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

    /// All values of a key that may be there several times.
    pub(crate) fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        let pairs = self.0.iter().filter(move |(k, _)| k == key);
        pairs.map(|(_, v)| v.as_str())
    }

    pub(crate) fn is_true(&self, key: &str) -> bool {
        self.get(key) == Some("true")
    }

    /// What of a document is wanted: all of it unless `columns` says.
    pub(crate) fn columns_of(&self, document: Json) -> Json {
        let look = Look::of(self);
        match look.columns.is_empty() {
            true => document,
            false => look.pick(&document),
        }
    }

    fn number(&self, key: &str) -> Result<Option<i64>, ApiError> {
        let number = self.get(key).map(str::parse);
        number.transpose().map_err(|_| bad_pagination())
    }

    /// Page and size, if the list is wanted in pages.
    fn paged(&self) -> Result<Option<(usize, usize)>, ApiError> {
        let Some(page) = self.number("page")? else {
            return Ok(None);
        };
        let size = self.number("page_size")?;
        let most = i64::try_from(MAX_PAGE).unwrap_or(i64::MAX);
        let within =
            |n: i64, most: i64| usize::try_from(n).ok().filter(|_| (1..=most).contains(&n));
        let fitting = (within(page, i64::MAX), size.map(|size| within(size, most)));
        match fitting {
            (Some(page), None) => Ok(Some((page, PAGE))),
            (Some(page), Some(Some(size))) => Ok(Some((page, size))),
            _ => {
                // Erlang's word for what is not there.
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

/// Which part of a list is wanted, in which order, and what of each item.
pub(crate) struct Window {
    filter: Option<Pattern>,
    paged: Option<(usize, usize)>,
    look: Look,
}

/// Order and columns: found in the items' JSON, so only there can they be applied.
#[derive(Clone, Default)]
struct Look {
    /// A path within an item, as in `message_stats.publish`.
    sort: Option<String>,
    reverse: bool,
    columns: Vec<String>,
}

fn at<'a>(item: &'a Json, path: &str) -> &'a Json {
    path.split('.').fold(item, |value, key| &value[key])
}

/// None: the item has no such member.
fn member<'a>(item: &'a Json, path: &str) -> Option<&'a Json> {
    path.split('.').try_fold(item, |value, key| value.get(key))
}

type Rank = (u8, f64, String);

/// Numbers before texts; what an item does not have goes first.
fn rank(value: &Json) -> Rank {
    match value {
        Json::Null => (0, 0.0, String::new()),
        Json::Bool(v) => (1, f64::from(u8::from(*v)), String::new()),
        Json::Number(v) => (2, v.as_f64().unwrap_or(0.0), String::new()),
        Json::String(v) => (3, 0.0, v.clone()),
        other => (4, 0.0, other.to_string()),
    }
}

impl Look {
    fn of(query: &Query) -> Look {
        let columns = query.get("columns").unwrap_or("").split(',');
        Look {
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
        let mut ranked: Vec<_> = items
            .iter_mut()
            .map(|i| (rank(at(i, path)), std::mem::take(i)))
            .collect();
        ranked.sort_by(|(a, _), (b, _)| self.compare(a, b));
        for (place, (_, item)) in items.iter_mut().zip(ranked) {
            *place = item;
        }
    }

    fn compare(&self, a: &Rank, b: &Rank) -> Ordering {
        let numbers = a.1.total_cmp(&b.1);
        let order = a.0.cmp(&b.0).then(numbers).then_with(|| a.2.cmp(&b.2));
        if self.reverse { order.reverse() } else { order }
    }

    fn pick(&self, item: &Json) -> Json {
        let mut picked = json!({});
        for path in &self.columns {
            // What is null is there, and shown.
            let Some(value) = member(item, path) else {
                continue;
            };
            let mut place = &mut picked;
            for key in path.split('.') {
                if !place.is_object() {
                    *place = json!({});
                }
                place = &mut place[key];
            }
            *place = value.clone();
        }
        picked
    }
}

impl Window {
    pub(crate) fn of(query: &Query) -> Result<Window, ApiError> {
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
        let paged = query.paged()?;
        let look = Look::of(query);
        Ok(Window {
            filter,
            paged,
            look,
        })
    }

    /// Whether [`Window::cut`] gives a page only.
    pub(crate) fn is_paged(&self) -> bool {
        self.paged.is_some() && self.look.sort.is_none()
    }

    /// The part of a list that is wanted: to be turned into JSON and given to [`Cut::respond`].
    pub(crate) fn cut<T>(
        &self,
        mut items: Vec<T>,
        name: impl Fn(&T) -> &str,
    ) -> Result<(Vec<T>, Cut), ApiError> {
        let total = items.len();
        if let Some(filter) = &self.filter {
            items.retain(|item| filter.matches(name(item)));
        }
        let filtered = items.len();
        let mut cut = Cut {
            about: None,
            window: None,
            look: self.look.clone(),
        };
        let Some((page, size)) = self.paged else {
            return Ok((items, cut));
        };
        let pages = filtered.div_ceil(size);
        if page > pages.max(1) {
            return Err(ApiError::page_out_of_range(format!(
                "Page out of range, page: {page} page size: {size}, len: {filtered}"
            )));
        }
        let skip = (page - 1) * size;
        cut.about = Some(json!({
            "total_count": total,
            "filtered_count": filtered,
            "item_count": size.min(filtered - skip.min(filtered)),
            "page": page,
            "page_size": size,
            "page_count": pages.max(1),
        }));
        if self.look.sort.is_some() {
            cut.window = Some((skip, size));
            return Ok((items, cut));
        }
        let part: Vec<T> = items.into_iter().skip(skip).take(size).collect();
        Ok((part, cut))
    }
}

/// What goes around a page, nothing around a whole list; and what can only be done with the items' JSON.
pub(crate) struct Cut {
    about: Option<Json>,
    /// The page, where it depends on the order.
    window: Option<(usize, usize)>,
    look: Look,
}

impl Cut {
    /// Cuts a sorted page before its items are turned into JSON, where they can tell what they would have at the path that
    /// the request sorts by. None: they cannot, and [`Cut::respond`] does it.
    pub(crate) fn choose<T>(
        &mut self,
        items: Vec<T>,
        value: impl Fn(&T, &str) -> Option<Json>,
    ) -> Vec<T> {
        let (Some(path), Some((skip, size))) = (&self.look.sort, self.window) else {
            return items;
        };
        let ranks: Option<Vec<Rank>> = items
            .iter()
            .map(|item| value(item, path).map(|v| rank(&v)))
            .collect();
        let Some(ranks) = ranks else {
            return items;
        };
        let mut ranked: Vec<_> = ranks.into_iter().zip(items).collect();
        ranked.sort_by(|(a, _), (b, _)| self.look.compare(a, b));
        self.window = None;
        self.look.sort = None;
        let page = ranked.into_iter().skip(skip).take(size);
        page.map(|(_, item)| item).collect()
    }

    pub(crate) fn respond(self, mut items: Vec<Json>) -> Response {
        self.look.order(&mut items);
        if let Some((skip, size)) = self.window {
            items = items.into_iter().skip(skip).take(size).collect();
        }
        if !self.look.columns.is_empty() {
            items = items.iter().map(|i| self.look.pick(i)).collect();
        }
        match self.about {
            None => axum::Json(items).into_response(),
            Some(mut about) => {
                about["items"] = Json::Array(items);
                axum::Json(about).into_response()
            }
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn query_strings_are_decoded() {
        let query = Query::parse(Some("a=1&name=%2F+x&flag&if-empty=true"));
        assert_eq!(query.get("name"), Some("/ x"));
        assert_eq!(query.get("flag"), Some(""));
        assert!(query.is_true("if-empty") && !query.is_true("a"));
        assert_eq!(query.get("none"), None);
    }

    #[test]
    fn pages_are_cut() {
        let names: Vec<String> = (0..25).map(|n| format!("q{n:02}")).collect();
        let cut = |text: &str| {
            let query = Query::parse(Some(text));
            let window = Window::of(&query)?;
            let (part, cut) = window.cut(names.clone(), |n| n)?;
            Ok::<_, ApiError>((part.len(), cut.about.map(|a| a["page_count"].clone())))
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
    fn items_are_ordered_and_reduced_to_columns() {
        let items = || {
            vec![
                json!({"name": "a", "n": 2, "s": {"p": 1}}),
                json!({"name": "b", "s": {"p": 9, "q": 1}}),
                json!({"name": "c", "n": 10, "s": {"p": 5}}),
            ]
        };
        let look = |text: &str| Look::of(&Query::parse(Some(text)));
        let ordered = |text: &str| {
            let mut all = items();
            look(text).order(&mut all);
            let names = all.iter().map(|i| i["name"].as_str().unwrap().to_owned());
            names.collect::<Vec<_>>().join("")
        };
        assert_eq!(ordered("sort=n"), "bac");
        assert_eq!(ordered("sort=n&sort_reverse=true"), "cab");
        assert_eq!(ordered("sort=s.p"), "acb");
        assert_eq!(ordered(""), "abc");
        let picked = look("columns=name,s.q,none").pick(&items()[1]);
        assert_eq!(picked, json!({"name": "b", "s": {"q": 1}}));
        let null = json!({"name": "b", "policy": null});
        assert_eq!(
            look("columns=policy,none").pick(&null),
            json!({"policy": null})
        );
    }
}

//! Error responses in RabbitMQ's format: `{"error": ..., "reason": ...}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use metadata::ChangeError;
use operations::{ErrorKind, OperationError};
use serde_json::{Value as Json, json};

/// RabbitMQ clients compare with this text.
const OBJECT_NOT_FOUND: &str = "Object Not Found";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) error: &'static str,
    /// A string, or RabbitMQ's list of an error code and its detail.
    pub(crate) reason: Json,
}

impl ApiError {
    fn new(status: StatusCode, error: &'static str, reason: impl Into<Json>) -> ApiError {
        ApiError {
            status,
            error,
            reason: reason.into(),
        }
    }

    pub(crate) fn bad_request(reason: impl Into<Json>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    pub(crate) fn not_found() -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, OBJECT_NOT_FOUND, "Not Found")
    }

    /// An object that a change requires does not exist. RabbitMQ uses a different `error` value
    /// here than for a missing path.
    pub(crate) fn missing(reason: impl Into<Json>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    pub(crate) fn not_authorized(reason: impl Into<Json>) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "not_authorized", reason)
    }

    /// The user is authenticated but lacks permission. RabbitMQ spells this value with an s.
    pub(crate) fn not_authorised(reason: impl Into<Json>) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "not_authorised", reason)
    }

    pub(crate) fn pagination(reason: impl Into<Json>) -> ApiError {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "invalid_pagination_parameters",
            reason,
        )
    }

    pub(crate) fn range(reason: impl Into<Json>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_range_parameters", reason)
    }

    pub(crate) fn page_out_of_range(reason: impl Into<Json>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "page_out_of_range", reason)
    }

    pub(crate) fn method() -> ApiError {
        ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "this path does not take this method",
        )
    }

    pub(crate) fn forbidden(reason: impl Into<Json>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    pub(crate) fn precondition_failed(reason: impl Into<Json>) -> ApiError {
        ApiError::new(
            StatusCode::PRECONDITION_FAILED,
            "precondition_failed",
            reason,
        )
    }

    pub(crate) fn unsupported_type(reason: impl Into<Json>) -> ApiError {
        ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            reason,
        )
    }

    pub(crate) fn too_large(limit: usize) -> ApiError {
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("the body is larger than {limit} bytes"),
        )
    }

    pub(crate) fn unavailable(reason: impl Into<Json>) -> ApiError {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "service_unavailable",
            reason,
        )
    }
}

impl ApiError {
    /// Prefixes the AMQP reply code, as in errors of the AMQP connection that RabbitMQ opens for
    /// such requests.
    pub(crate) fn with_amqp_code(self, code: &str) -> ApiError {
        let reason = Json::from(format!("{code} - {}", self.text()));
        ApiError { reason, ..self }
    }

    /// The reason as readable text.
    pub(crate) fn text(&self) -> String {
        let text = self.reason.as_str().map(str::to_owned);
        text.unwrap_or_else(|| self.reason.to_string())
    }
}

impl From<ChangeError> for ApiError {
    fn from(refused: ChangeError) -> ApiError {
        match refused {
            ChangeError::NotFound(text) => ApiError::missing(text),
            ChangeError::AccessRefused(text) => ApiError::not_authorised(text),
            ChangeError::Unavailable(text) => ApiError::unavailable(text),
            ChangeError::PreconditionFailed(text)
            | ChangeError::ResourceLocked(text)
            | ChangeError::NotPermitted(text)
            | ChangeError::Invalid(text) => ApiError::bad_request(text),
        }
    }
}

impl From<OperationError> for ApiError {
    fn from(error: OperationError) -> ApiError {
        match error.kind {
            ErrorKind::NotFound => ApiError::missing(error.text),
            ErrorKind::AccessRefused => ApiError::not_authorised(error.text),
            ErrorKind::Unavailable => ApiError::unavailable(error.text),
            ErrorKind::ResourceLocked
            | ErrorKind::PreconditionFailed
            | ErrorKind::NotPermitted
            | ErrorKind::NotImplemented => ApiError::bad_request(error.text),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        // RabbitMQ sends 405 without a body. The `Allow` header lists the methods.
        let has_no_body = self.status == StatusCode::METHOD_NOT_ALLOWED;
        let body = json!({"error": self.error, "reason": self.reason});
        let mut response = match has_no_body {
            true => self.status.into_response(),
            false => (self.status, axum::Json(body)).into_response(),
        };
        if self.status == StatusCode::UNAUTHORIZED {
            let realm = HeaderValue::from_static("Basic realm=\"Posthorn Management\"");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, realm);
        }
        response
    }
}

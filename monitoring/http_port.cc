#include "monitoring/http_port.h"

#include <httplib.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "monitoring/http_address.h"
#include "monitoring/request_threads.h"
#include "monitoring/status_page.h"

namespace millrace::monitoring {
namespace {

constexpr size_t kThreads = 2;
constexpr size_t kWaitingMax = 16;
constexpr time_t kBeginSeconds = 1;
constexpr time_t kTimeoutSeconds = 2;

/// What the library wants to know of a job: nothing in some versions, in others whether it was taken.
using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue(nullptr));

class RequestQueue : public httplib::TaskQueue {
 public:
  Taken enqueue(std::function<void()> job) override {
    threads_.enqueue(std::move(job));
    return static_cast<Taken>(true);
  }
  void shutdown() override { threads_.shutdown(); }

 private:
  RequestThreads threads_{kThreads, kWaitingMax};
};

/// The library's own choice, SO_REUSEPORT, lets two processes share a port without a word.
void set_listen_options(socket_t socket) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

void answer(httplib::Response& response, int status, const std::string& body, const char* type) {
  response.status = status;
  response.set_content(body, type);
}

constexpr const char* kPlain = "text/plain; charset=utf-8";

/// Everything the port knows; `request` was not looked at before.
void route(const HttpHandlers& handlers, const httplib::Request& request, httplib::Response& response) {
  response.set_header("Cache-Control", "no-store");
  response.set_header("X-Content-Type-Options", "nosniff");
  if (request.method != "GET" && request.method != "HEAD") {
    response.set_header("Allow", "GET, HEAD");
    return answer(response, 405, "only GET and HEAD\n", kPlain);
  }
  if (request.path == "/metrics") {
    return answer(response, 200, handlers.metrics_text(), "text/plain; version=0.0.4; charset=utf-8");
  }
  if (request.path == "/healthz") {
    const std::optional<std::string> reason = handlers.unhealthy();
    return reason ? answer(response, 503, *reason + "\n", kPlain) : answer(response, 200, "ok\n", kPlain);
  }
  if (request.path == "/status") return answer(response, 200, handlers.status_json(), "application/json");
  if (request.path == "/") {
    response.set_header("Content-Security-Policy", kStatusPagePolicy);
    return answer(response, 200, status_page(handlers.title), "text/html; charset=utf-8");
  }
  answer(response, 404, "no such page: /, /status, /metrics, /healthz\n", kPlain);
}

void route_without_exceptions(const HttpHandlers& handlers, const httplib::Request& request,
                              httplib::Response& response) {
  try {
    route(handlers, request, response);
  } catch (...) {
    answer(response, 500, "the handler failed\n", kPlain);
  }
}

}  // namespace

struct HttpPort::Impl {
  HttpHandlers handlers;
  httplib::Server server;
  std::thread listener;
  std::promise<void> running;
  uint16_t port = 0;

  void configure() {
    server.set_socket_options(set_listen_options);
    server.set_keep_alive_max_count(1);
    // With one request a connection this is the time until it begins.
    server.set_keep_alive_timeout(kBeginSeconds);
    server.set_read_timeout(kTimeoutSeconds);
    server.set_write_timeout(kTimeoutSeconds);
    server.set_payload_max_length(0);
    server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      route_without_exceptions(handlers, request, response);
      return httplib::Server::HandlerResponse::Handled;
    });
    // The library asks for its threads once it accepts: only from then on does its stop() have an effect.
    server.new_task_queue = [this]() -> httplib::TaskQueue* {
      running.set_value();
      return new RequestQueue;
    };
  }
};

HttpPort::HttpPort(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpPort::~HttpPort() { stop(); }

Result<std::unique_ptr<HttpPort>> HttpPort::start(std::string_view address, std::string_view flag,
                                                  HttpHandlers handlers) {
  Result<HttpAddress> parsed = parse_http_address(address);
  if (!parsed) return fail(parsed.error().code, std::string(flag) + ": " + parsed.error().message);
  auto impl = std::make_unique<Impl>();
  impl->handlers = std::move(handlers);
  impl->configure();
  errno = 0;
  const int port = parsed->port == 0 ? impl->server.bind_to_any_port(parsed->host)
                                     : (impl->server.bind_to_port(parsed->host, parsed->port) ? parsed->port : -1);
  if (port <= 0) {
    const int error = errno;
    const bool in_use = error == EADDRINUSE;
    return fail(ErrorCode::kIo, "cannot listen on " + std::string(address) + " for HTTP: " +
                                    (in_use ? "the port is in use by another process; choose another one with "
                                            : std::string(error != 0 ? std::strerror(error) : "no such host") +
                                                  "; choose another address with ") +
                                    std::string(flag) + " (port 0: any free one)");
  }
  impl->port = static_cast<uint16_t>(port);
  std::future<void> running = impl->running.get_future();
  impl->listener = std::thread([server = &impl->server] { server->listen_after_bind(); });
  running.wait();
  return std::unique_ptr<HttpPort>(new HttpPort(std::move(impl)));
}

uint16_t HttpPort::port() const { return impl_->port; }

void HttpPort::stop() {
  if (!impl_->listener.joinable()) return;
  impl_->server.stop();
  impl_->listener.join();
}

}  // namespace millrace::monitoring

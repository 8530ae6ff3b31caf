#include "monitoring/http/http_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

/// One request on one connection, by bytes and by time: no sockets, no clock.
namespace millrace::monitoring {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using State = HttpExchange::State;
using Progress = HttpRequestReader::Progress;

constexpr HttpTimeouts kTimeouts;
const std::string kRequest = "GET /status?x=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";

TEST(HttpRequestReader, ReadsARequestHoweverItIsCut) {
  for (size_t piece = 1; piece <= kRequest.size(); ++piece) {
    HttpRequestReader reader;
    for (size_t at = 0; at < kRequest.size(); at += piece) {
      ASSERT_EQ(reader.progress(), Progress::kMore);
      reader.take(std::string_view(kRequest).substr(at, piece));
    }
    ASSERT_EQ(reader.progress(), Progress::kComplete) << piece;
    EXPECT_EQ(reader.request().method, "GET");
    EXPECT_EQ(reader.request().path, "/status");
  }
}

TEST(HttpRequestReader, EveryTruncationIsIncomplete) {
  for (size_t length = 0; length < kRequest.size(); ++length) {
    HttpRequestReader reader;
    EXPECT_EQ(reader.take(kRequest.substr(0, length)), Progress::kMore) << length;
  }
}

TEST(HttpRequestReader, TakesTheFormsThatClientsSend) {
  const auto path_of = [](const std::string& line) {
    HttpRequestReader reader;
    EXPECT_EQ(reader.take(line + "\r\n\r\n"), Progress::kComplete) << line;
    return reader.request().path;
  };
  EXPECT_EQ(path_of("GET / HTTP/1.0"), "/");
  EXPECT_EQ(path_of("GET http://shard:9100/metrics?a=b HTTP/1.1"), "/metrics");
  EXPECT_EQ(path_of("GET http://shard:9100 HTTP/1.1"), "/");
  EXPECT_EQ(path_of("GET https://shard:9100/status HTTP/1.1"), "/status");
  EXPECT_EQ(path_of("GET /%2e%2e/x HTTP/1.1"), "/%2e%2e/x");
  EXPECT_EQ(path_of("BREW /? HTTP/1.1"), "/");
}

TEST(HttpRequestReader, FindsTheTokenOfTheFirstAuthorization) {
  const auto token_of = [](const std::string& headers) {
    HttpRequestReader reader;
    EXPECT_EQ(reader.take("GET /a HTTP/1.1\r\n" + headers + "\r\n"), Progress::kComplete) << headers;
    return reader.request().token;
  };
  EXPECT_EQ(token_of("Authorization: Bearer abc=\r\n"), "abc=");
  EXPECT_EQ(token_of("Host: a\r\nauthorization:bEARER \t abc \t\r\nAccept: b\r\n"), "abc");
  EXPECT_EQ(token_of("Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"), "a");
  EXPECT_EQ(token_of("Authorization: Bearer a b\r\n"), "a b");
  for (const char* none :
       {"", "Authorization:\r\n", "Authorization: Bearer\r\n", "Authorization: Bearer \r\n",
        "Authorization: Basic YQ==\r\n", "Authorization : Bearer a\r\n", "X: Authorization: Bearer a\r\n",
        "XAuthorization: Bearer a\r\n", "Authorization Bearer a\r\n", "Authorization: Bearera\r\n"})
    EXPECT_EQ(token_of(none), "") << none;
}

const std::string kPost = "POST /jobs/a/end HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n{\"a\": \"b\"}\n";

TEST(HttpRequestReader, ReadsTheBodyOfAPostHoweverItIsCut) {
  for (size_t piece = 1; piece <= kPost.size(); ++piece) {
    HttpRequestReader reader;
    for (size_t at = 0; at < kPost.size(); at += piece) {
      ASSERT_EQ(reader.progress(), Progress::kMore) << piece;
      reader.take(std::string_view(kPost).substr(at, piece));
    }
    ASSERT_EQ(reader.progress(), Progress::kComplete) << piece;
    EXPECT_EQ(reader.request().path, "/jobs/a/end");
    EXPECT_EQ(reader.request().body, "{\"a\": \"b\"}\n");
  }
  for (size_t length = 0; length < kPost.size(); ++length) {
    HttpRequestReader reader;
    EXPECT_EQ(reader.take(kPost.substr(0, length)), Progress::kMore) << length;
  }
}

TEST(HttpRequestReader, BoundsTheBodyAndAsksForItsLength) {
  const auto read = [](const std::string& headers, const std::string& body) {
    HttpRequestReader reader;
    reader.take("POST /a HTTP/1.1\r\n" + headers + "\r\n" + body);
    return reader;
  };
  EXPECT_EQ(read("", "more").request().body, "") << "without a length there is none";
  EXPECT_EQ(read("content-length: 2\r\n", "more").request().body, "mo");
  // The longest body behind the longest head, in one piece.
  const std::string most(kHttpBodyBytesMax, 'b');
  std::string headers = "Content-Length: " + std::to_string(most.size()) + "\r\nX: ";
  headers += std::string(kHttpHeadBytesMax - std::string("POST /a HTTP/1.1\r\n").size() - headers.size() - 4, 'a');
  const HttpRequestReader whole = read(headers + "\r\n", most);
  ASSERT_EQ(whole.progress(), Progress::kComplete);
  EXPECT_EQ(whole.request().body, most);
  EXPECT_FALSE(whole.request().body_is_too_long);
  for (const std::string& length : {std::to_string(kHttpBodyBytesMax + 1), std::string("18446744073709551615")}) {
    const HttpRequestReader longer = read("Content-Length: " + length + "\r\n", "");
    ASSERT_EQ(longer.progress(), Progress::kComplete) << "refused before a byte of it came";
    EXPECT_TRUE(longer.request().body_is_too_long);
  }
  for (const std::string length : {"x", "-1", "+1", "1 1", "0x10", "18446744073709551616"}) {
    const HttpRequestReader wrong = read("Content-Length: " + length + "\r\n", "");
    ASSERT_EQ(wrong.progress(), Progress::kRefused) << length;
    EXPECT_EQ(wrong.refusal(), 400);
  }
  const HttpRequestReader chunked = read("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", "0\r\n\r\n");
  ASSERT_EQ(chunked.progress(), Progress::kRefused);
  EXPECT_EQ(chunked.refusal(), 411);
  HttpRequestReader get;
  EXPECT_EQ(get.take("GET /a HTTP/1.1\r\nContent-Length: 9\r\n\r\n"), Progress::kComplete);
}

TEST(HttpRequestReader, RefusesAMalformedRequestLine) {
  for (const std::string& line :
       {std::string(), std::string("GET"), std::string("GET /"), std::string("GET  HTTP/1.1"),
        std::string("GET / HTTP/2"), std::string("GET / FTP/1.1"), std::string("GET status HTTP/1.1"),
        std::string("GET /\x01 HTTP/1.1"), std::string("GET /\xff HTTP/1.1"), std::string("G\0T / HTTP/1.1", 14),
        std::string("GET /a b HTTP/1.1"), std::string(" / HTTP/1.1")}) {
    HttpRequestReader reader;
    EXPECT_EQ(reader.take(line + "\r\n\r\n"), Progress::kRefused) << line;
    EXPECT_EQ(reader.refusal(), 400) << line;
    EXPECT_EQ(reader.take(kRequest), Progress::kRefused) << "later bytes change nothing";
  }
}

TEST(HttpRequestReader, BoundsLineAndHeaders) {
  HttpRequestReader line;
  EXPECT_EQ(line.take("GET /" + std::string(kHttpHeadBytesMax, 'a')), Progress::kRefused);
  EXPECT_EQ(line.refusal(), 414);
  HttpRequestReader headers;
  EXPECT_EQ(headers.take("GET / HTTP/1.1\r\nX: " + std::string(kHttpHeadBytesMax, 'a')), Progress::kRefused);
  EXPECT_EQ(headers.refusal(), 431);
  HttpRequestReader fits;
  const std::string head = "GET / HTTP/1.1\r\nX: ";
  EXPECT_EQ(fits.take(head + std::string(kHttpHeadBytesMax - head.size() - 4, 'a')), Progress::kMore);
  EXPECT_EQ(fits.take("\r\n\r\n"), Progress::kComplete) << "as long as may be";
}

TEST(HttpExchange, ARequestItsAnswerAndTheEnd) {
  HttpExchange exchange(0);
  EXPECT_EQ(exchange.deadline(), kTimeouts.request);
  EXPECT_FALSE(exchange.on_bytes(kRequest.substr(0, 10), 1));
  const auto request = exchange.on_bytes(kRequest.substr(10), 2);
  ASSERT_TRUE(request);
  EXPECT_EQ(exchange.state(), State::kAnswering);
  EXPECT_FALSE(exchange.deadline()) << "the handler's time is not the peer's";
  exchange.on_time(1'000 * kNsPerS);
  EXPECT_EQ(exchange.state(), State::kAnswering);
  exchange.answer("12345", 3);
  EXPECT_EQ(exchange.state(), State::kWriting);
  EXPECT_EQ(exchange.deadline(), 3 + kTimeouts.answer);
  exchange.on_sent(2, 4);
  EXPECT_EQ(exchange.unsent(), "345");
  exchange.on_sent(3, 5);
  EXPECT_EQ(exchange.state(), State::kClosing);
  EXPECT_FALSE(exchange.on_bytes(kRequest, 6)) << "one request a connection";
  exchange.on_end();
  EXPECT_EQ(exchange.state(), State::kOver);
}

TEST(HttpExchange, AByteNowAndThenGainsNoTime) {
  const TimeNs began = 7 * kNsPerS;
  HttpExchange exchange(began);
  TimeNs now = began;
  for (; now < began + kTimeouts.request; now += kNsPerS / 2) {
    ASSERT_EQ(exchange.state(), State::kReading);
    exchange.on_bytes("a", now);
    exchange.on_time(now);
    EXPECT_EQ(exchange.deadline(), began + kTimeouts.request);
  }
  exchange.on_time(now);
  ASSERT_EQ(exchange.state(), State::kWriting);
  EXPECT_THAT(std::string(exchange.unsent()), StartsWith("HTTP/1.1 408 "));
  exchange.on_time(now + kTimeouts.close);
  EXPECT_EQ(exchange.state(), State::kOver) << "nor does it by not reading the refusal";
}

TEST(HttpExchange, AnAnswerThatIsReadByteByByteEndsInTime) {
  HttpExchange exchange(0);
  exchange.on_bytes(kRequest, 0);
  exchange.answer(std::string(1'000, 'x'), 0);
  TimeNs now = 0;
  for (; now < kTimeouts.answer; now += kNsPerS) {
    ASSERT_EQ(exchange.state(), State::kWriting);
    exchange.on_sent(1, now);
    exchange.on_time(now);
  }
  exchange.on_time(now);
  EXPECT_EQ(exchange.state(), State::kOver);
}

TEST(HttpExchange, APeerThatSendsOnAfterItsAnswerIsLeftInTime) {
  HttpExchange exchange(0);
  exchange.on_bytes(kRequest, 0);
  exchange.answer("x", 0);
  exchange.on_sent(1, 0);
  exchange.on_bytes(std::string(100'000, 'y'), kTimeouts.close / 2);
  exchange.on_time(kTimeouts.close);
  EXPECT_EQ(exchange.state(), State::kOver);
}

TEST(HttpExchange, APeerThatClosesItsEndEarlyStillGetsItsAnswer) {
  HttpExchange asked(0);
  asked.on_bytes(kRequest, 0);
  asked.on_end();
  EXPECT_FALSE(asked.reads());
  asked.answer("x", 0);
  EXPECT_EQ(asked.state(), State::kWriting);
  asked.on_sent(1, 0);
  EXPECT_EQ(asked.state(), State::kOver);
  HttpExchange asked_nothing(0);
  asked_nothing.on_end();
  EXPECT_EQ(asked_nothing.state(), State::kOver);
}

TEST(HttpExchange, AnAnswerAfterABrokenConnectionIsDropped) {
  HttpExchange exchange(0);
  exchange.on_bytes(kRequest, 0);
  exchange.on_broken();
  exchange.answer("x", 0);
  EXPECT_EQ(exchange.state(), State::kOver);
}

TEST(HttpExchange, ARefusedRequestIsAnswered) {
  HttpExchange exchange(0);
  EXPECT_FALSE(exchange.on_bytes("nonsense\r\n\r\n", 1));
  EXPECT_EQ(exchange.state(), State::kWriting);
  EXPECT_THAT(std::string(exchange.unsent()), StartsWith("HTTP/1.1 400 "));
}

TEST(ExchangeToEnd, IsTheOldestAndOneThatIsAnsweredOnlyWhereAllAre) {
  HttpExchange answering(0);
  answering.on_bytes(kRequest, 0);
  HttpExchange writing(1);
  writing.on_bytes(kRequest, 1);
  writing.answer("x", 1);
  HttpExchange late_reader(9);
  HttpExchange early_reader(5);
  const std::vector<const HttpExchange*> all = {&answering, &writing, &late_reader, &early_reader};
  EXPECT_EQ(exchange_to_end(all), 3u);
  EXPECT_EQ(exchange_to_end(std::span(all).first(3)), 2u);
  EXPECT_EQ(exchange_to_end(std::span(all).first(2)), 0u);
  EXPECT_EQ(exchange_to_end(std::span(all).subspan(1, 1)), 0u);
  EXPECT_FALSE(exchange_to_end({}));
}

TEST(HttpAnswerBytes, AHeadHasTheLengthOfTheBodyThatItLeavesOut) {
  EXPECT_EQ(http_answer_bytes(200, "GET", "A: b\r\n", "xyz"),
            "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 3\r\nConnection: close\r\n\r\nxyz");
  const std::string head = http_answer_bytes(503, "HEAD", "", "xyz");
  EXPECT_THAT(head, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(head, EndsWith("\r\n\r\n"));
}

}  // namespace
}  // namespace millrace::monitoring

// Exceptions, streams and sorting of libstdc++. single_step.rs steps it instruction by instruction
// between the two marks (int3).
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iomanip>
#include <locale>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <vector>

#define MARK() __asm__ volatile("int3" ::: "memory")
#define ALONE __attribute__((noinline, noclone))

static volatile unsigned sink;

struct Guard {
    unsigned value;
    explicit Guard(unsigned value) : value(value) {}
    // Runs while the exception propagates.
    ALONE ~Guard() { sink = sink + value; }
};

ALONE static void fail(unsigned depth) {
    Guard guard(depth);
    if (depth == 0) throw std::runtime_error("at the bottom, in words too long to be kept in place");
    fail(depth - 1);
    sink = sink + 1;
}

ALONE static void translate(unsigned depth) {
    try {
        fail(depth);
    } catch (const std::logic_error &) {
        sink = sink + 100;
    } catch (const std::runtime_error &error) {
        std::throw_with_nested(std::invalid_argument(error.what()));
    }
}

ALONE static unsigned caught(unsigned depth) {
    try {
        translate(depth);
    } catch (const std::exception &outer) {
        try {
            std::rethrow_if_nested(outer);
        } catch (const std::runtime_error &inner) {
            return (unsigned)std::string(inner.what()).size();
        }
    }
    return 0;
}

ALONE static void never() noexcept(false) {
    std::exception_ptr kept;
    try {
        throw 7;
    } catch (...) {
        kept = std::current_exception();
    }
    std::rethrow_exception(kept);
}

struct Shape {
    virtual ~Shape() = default;
    virtual unsigned area() const = 0;
};
struct Square : virtual Shape {
    unsigned side = 3;
    unsigned area() const override { return side * side; }
};

ALONE static unsigned written() {
    std::ostringstream out;
    out << "text " << 42 << ' ' << 3.25 << ' ' << std::hex << std::setw(12) << 0xBEEF << std::endl;
    out << std::fixed << std::setprecision(3) << 2.5L << true;
    std::istringstream in(out.str());
    std::string word;
    int number = 0;
    double real = 0;
    in >> word >> number >> real;
    std::getline(in, word);
    return (unsigned)(word.size() + number) + (unsigned)real;
}

ALONE static unsigned sorted() {
    std::vector<std::string> words;
    for (unsigned i = 0; i < 40; i++) words.push_back(std::to_string(i * 7919 % 1009) + " and more than fits");
    std::sort(words.begin(), words.end(), [](const std::string &a, const std::string &b) { return a > b; });
    std::stable_sort(words.begin(), words.end());
    std::map<std::string, unsigned> counts;
    for (const std::string &word : words) counts[word]++;
    return (unsigned)counts.size();
}

ALONE static unsigned all() {
    unsigned x = caught(4) + written() + sorted();
    try {
        never();
    } catch (int number) {
        x += (unsigned)number;
    }
    std::unique_ptr<Shape> shape = std::make_unique<Square>();
    x += shape->area();
    try {
        x += (unsigned)dynamic_cast<Square &>(*shape).side + (unsigned)std::string("short").at(sink | 100);
    } catch (const std::out_of_range &) {
        x++;
    }
    return x;
}

int main() {
    // Stepping starts with the first round, so that lazy binding is stepped too.
    MARK();
    unsigned first = all();
    MARK();
    return first == all() ? 0 : 1;
}

# A server of pages with a thread for each connection.
#
# usage: server.rb PORT

require 'socket'

def p_page(socket)
  request = socket.gets
  number = request[/number=(\d+)/, 1].to_i
  rows = 20.times.map { |row| p_row(number + row) }
  body = rows.join("\n")
  socket.write("HTTP/1.0 200 OK\r\nContent-Length: #{body.length}\r\n\r\n#{body}")
ensure
  socket.close
end

def p_row(number)
  cells = 10.times.map do |cell|
    p_cell(number * cell)
  end
  cells.join(' ')
end

def p_cell(number)
  text = ''
  100.times { |i| text << (number * i).to_s(36) }
  text[0, 20]
end

server = TCPServer.new('127.0.0.1', ARGV[0].to_i)
while true
  Thread.new(server.accept) do |socket|
    p_page(socket)
  end
end
